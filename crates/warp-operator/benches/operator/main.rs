//! Figures of the operator against a real API server, each beside a raw client that does the same
//! writes in the same run: `bench/operator/run` builds what this needs and prints the table.
//!
//! `WARP_BINARY` is the operator under test; `WARP_BENCH_FINISHED` and `WARP_BENCH_ROUNDS` change
//! the sizes.
#![allow(clippy::print_stdout, clippy::cast_possible_truncation)]

mod figures;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "../rig/rig.rs"]
mod rig;

use anyhow::Result;
use rig::{Operator, number, prepared};
use warp_testkit::{Cluster, NodeShape};

fn main() -> Result<()> {
    // `cargo test --benches` and clippy only want it to build.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<()> {
    let rounds = number("WARP_BENCH_ROUNDS", 200)?;
    let finished = number("WARP_BENCH_FINISHED", 10_000)?;
    println!("| figure | operator | raw client | ratio |");
    println!("|---|---|---|---|");
    {
        let cluster = Cluster::real().api_server_only().start().await?;
        let client = prepared(&cluster).await?;
        let operator = Operator::start(&cluster, &[])?;
        Box::pin(figures::latency(&client, rounds)).await?;
        Box::pin(figures::memory(&client, &operator, finished)).await?;
    }
    let cluster = Cluster::real()
        .nodes(NodeShape::h100(8), 10)
        .start()
        .await?;
    let client = prepared(&cluster).await?;
    let operator = Operator::start(&cluster, &[])?;
    Box::pin(figures::writes(&client, &operator, 50)).await
}
