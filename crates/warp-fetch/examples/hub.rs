//! Serves a folder (`org/name/files…`) as a hub, for `bench/fetch` and for trying other clients:
//! `cargo run -p warp-fetch --example hub -- FOLDER [ADDRESS]`. Ends when its standard input does.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    missing_debug_implementations,
    unreachable_pub,
    reason = "a tool for developers that shares the tests' hub"
)]

#[path = "../tests/it/hub.rs"]
mod hub;

use std::io::Read;
use std::path::Path;

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = words.next().expect("the folder to serve");
    let address = words.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let hub = hub::Hub::listen(&address, Path::new(&folder), None);
    println!("{}", hub.endpoint());
    let mut rest = Vec::new();
    std::io::stdin()
        .read_to_end(&mut rest)
        .expect("standard input");
    println!("{}", hub.sent());
}
