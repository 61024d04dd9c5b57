//! What our providers ask, judged by what others have written: `moto`, a peer's EC2, and Google's own description of its
//! API. Neither is part of this repository; `testbed/moto/run` and `testbed/gcp` bring them and name them here.

mod discovery;
mod moto;
#[path = "../it/stand.rs"]
#[allow(dead_code, reason = "the suite uses the rest of it")]
mod stand;

/// What the target has to say where something is.
fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run it by its make target"))
}

/// Figures go where a test's output is not caught.
fn say(words: &str) {
    std::io::Write::write_all(&mut std::io::stderr(), format!("{words}\n").as_bytes())
        .expect("said");
}
