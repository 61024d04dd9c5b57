//! Nodes.
#![allow(
    clippy::unwrap_used,
    clippy::duration_suboptimal_units,
    reason = "a test that cannot go on has failed"
)]

mod addresses;
mod docker;
mod refusals;
mod saved;
mod simulated;
mod streams;
mod virtual_time;

/// The pods of a process node, ended with the test however that ends.
struct Leftovers(std::path::PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let root = self.0.clone();
        let ending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .unwrap()
                .block_on(warp_local::node::process::end_all(&root));
        });
        ending.join().ok();
    }
}
