//! Joins nodes to an API: registers them, keeps their leases, watches their pods, and carries the state
//! machine's steps to the runtime and its reports back. One task drives every pod of every node it has;
//! nothing here decides what a pod does.

mod leases;
mod nodes;
mod notes;
mod pods;
mod room;
mod writes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::fleet::Shape;
use super::runtime::{Report, Runtime};
use crate::controllers::Clock;
use crate::controllers::events::Recorder;
use crate::controllers::time_of_day;

/// What can be chosen about a host.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often each lease is renewed.
    pub lease_every: Duration,
    /// Writes under way at once.
    pub writes: usize,
    /// Also tell users what went well (pulled, started …), not only what went wrong.
    pub chatty: bool,
}

impl Options {
    /// Larger fleets renew less often; a node counts as lost after 40 to 50 seconds.
    pub fn for_fleet(nodes: usize) -> Self {
        Self {
            lease_every: Duration::from_secs(if nodes > 200 { 20 } else { 10 }),
            writes: 64,
            chatty: nodes <= 50,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("failed to register node {name}")]
    Register {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

/// A set of nodes under one runtime.
pub struct Host {
    pub client: kube::Client,
    pub clock: Clock,
    pub shapes: Vec<Shape>,
    pub runtime: Arc<dyn Runtime>,
    /// Where a runtime sends what it learns as it happens.
    pub reports: Option<mpsc::UnboundedReceiver<Report>>,
    pub options: Options,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("nodes", &self.shapes.len())
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

/// Nodes that do not renew their lease: cut off, or deleted by somebody.
type Silent = Arc<RwLock<BTreeSet<String>>>;

impl Host {
    /// Registers the nodes and runs their pods until `shutdown`. Pods keep their state: what a stop of
    /// the process means to them is the runtime's business.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), HostError> {
        nodes::register(&self).await?;
        let silent = Silent::default();
        let (recorder, events) = Recorder::new(
            self.client.clone(),
            time_of_day(&self.clock),
            shutdown.clone(),
        );
        let leases = leases::keep(
            self.client.clone(),
            self.clock.clone(),
            self.shapes.iter().map(|shape| shape.name.clone()).collect(),
            silent.clone(),
            self.options.lease_every,
        );
        let pods = pods::Loop::new(self, silent, recorder);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = leases => {}
            () = events => {}
            () = pods.run() => {}
        }
        Ok(())
    }
}
