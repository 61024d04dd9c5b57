//! Engines of several nodes that are one: the leader waits for its workers, each worker for its leader, and all end when
//! one of them does. Nothing is computed together: this is how they begin and end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long is waited before the leader is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long one that connects may take to say its rank.
const GREETING: Duration = Duration::from_secs(2);

/// Where it stands among the nodes of one engine.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Several nodes")]
pub(super) struct Span {
    /// Nodes that are one engine together
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    nnodes: u32,
    /// Which of them this is: 0 leads
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    node_rank: u32,
    /// Address of the leader
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    master_addr: String,
    /// Port at which the leader meets its workers
    #[arg(long, value_name = "PORT", default_value_t = 29501)]
    master_port: u16,
    /// Answer nobody but the leader
    #[arg(long)]
    pub(super) headless: bool,
}

/// The others.
#[derive(Debug, Default)]
pub(super) struct Group(Vec<(u32, TcpStream)>);

impl Group {
    /// Ends, with who it was, when one of the others is gone. An engine of one node has no others.
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        let others = self.0.iter_mut().map(|(rank, stream)| async move {
            let mut byte = [0];
            // Nobody says anything after joining: what comes is the end.
            while matches!(stream.read(&mut byte).await, Ok(1)) {}
            *rank
        });
        let mut others: FuturesUnordered<_> = others.collect();
        match others.next().await {
            Some(rank) => anyhow::anyhow!("rank {rank} left the engine: all of it ends"),
            None => std::future::pending().await,
        }
    }
}

/// Waits for all nodes of the engine.
pub(super) async fn join(span: &Span, host: IpAddr) -> anyhow::Result<Group> {
    if span.node_rank >= span.nnodes {
        bail!(
            "--node-rank {} is none of --nnodes {}: ranks count from 0",
            span.node_rank,
            span.nnodes
        );
    }
    if span.headless != (span.node_rank > 0) {
        bail!("--headless is for every rank but 0: the leader answers");
    }
    match span.node_rank {
        _ if span.nnodes == 1 => Ok(Group::default()),
        0 => lead(span, host).await,
        rank => follow(span, rank).await,
    }
}

async fn lead(span: &Span, host: IpAddr) -> anyhow::Result<Group> {
    let listener = TcpListener::bind((host, span.master_port))
        .await
        .with_context(|| {
            format!(
                "failed to meet workers at {host}:{}; choose another with --master-port",
                span.master_port
            )
        })?;
    let mut workers = BTreeMap::new();
    while workers.len() + 1 < span.nnodes as usize {
        let (mut stream, _) = listener.accept().await.context("failed to meet a worker")?;
        let rank = tokio::time::timeout(GREETING, stream.read_u32()).await;
        match rank {
            Ok(Ok(rank)) if rank > 0 && rank < span.nnodes => {
                // One that comes again has lost its first connection.
                workers.insert(rank, stream);
            }
            // Somebody who is no worker; it is sent away.
            _ => drop(stream),
        }
    }
    Ok(Group(workers.into_iter().collect()))
}

async fn follow(span: &Span, rank: u32) -> anyhow::Result<Group> {
    let leader = (span.master_addr.as_str(), span.master_port);
    loop {
        // It may not be there yet; how long that may take is decided by whoever started this.
        if let Ok(mut stream) = TcpStream::connect(leader).await
            && stream.write_u32(rank).await.is_ok()
        {
            return Ok(Group(vec![(0, stream)]));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(rank: u32, port: u16) -> Span {
        Span {
            nnodes: 3,
            node_rank: rank,
            master_addr: "127.0.0.1".to_owned(),
            master_port: port,
            headless: rank > 0,
        }
    }

    async fn free_port() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        listener.local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn all_wait_for_each_other_and_end_with_the_first_that_goes() {
        let (port, host) = (free_port().await, IpAddr::from([127, 0, 0, 1]));
        let ranks = [span(0, port), span(1, port), span(2, port)];
        let [leader, first, second] = &ranks;
        let (leader, first, second) =
            tokio::join!(join(leader, host), join(first, host), join(second, host));
        let (mut leader, mut first) = (leader.unwrap(), first.unwrap());
        drop(second.unwrap());
        let told = leader.broken().await.to_string();
        assert!(told.contains("rank 2 left"), "{told}");
        drop(leader);
        let told = first.broken().await.to_string();
        assert!(told.contains("rank 0 left"), "{told}");
    }

    #[tokio::test]
    async fn ranks_that_cannot_be_are_refused() {
        let host = IpAddr::from([127, 0, 0, 1]);
        assert!(join(&span(3, 1), host).await.is_err());
        let silent = Span {
            headless: true,
            ..span(0, 1)
        };
        assert!(join(&silent, host).await.is_err());
    }
}
