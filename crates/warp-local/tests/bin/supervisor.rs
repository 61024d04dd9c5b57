//! The hidden verbs of the binary without the rest of it: what the tests of this crate start for the pods
//! of process nodes. Not shipped.

use std::process::ExitCode;

use warp_local::node::process;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next().unwrap_or_default();
    if verb == process::SUPERVISE {
        let folder = arguments.next().unwrap_or_default();
        return process::run_supervisor(std::path::Path::new(&folder));
    }
    if verb == process::CONTAINER {
        return process::run_container(arguments.collect());
    }
    ExitCode::FAILURE
}
