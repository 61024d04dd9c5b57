//! Gives the engine of `warp-core` a clock: requests go in, tokens come out when they are due.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;
use warp_core::engine::{Ask, Engine, Refusal, Token};

use super::metrics::Metrics;

/// A request under way. Dropped, it is cancelled.
#[derive(Debug)]
pub(super) struct Ticket {
    id: u64,
    pub(super) tokens: mpsc::UnboundedReceiver<Token>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The pump ends with the process only.
        self.orders.send(Order::Cancel(self.id)).ok();
    }
}

#[derive(Debug)]
enum Order {
    Submit {
        ask: Ask,
        tokens: mpsc::UnboundedSender<Token>,
        taken: tokio::sync::oneshot::Sender<Result<(), Refusal>>,
    },
    Cancel(u64),
    ClearCache,
}

/// The way to the pump.
#[derive(Clone, Debug)]
pub(super) struct Pump {
    orders: mpsc::UnboundedSender<Order>,
}

impl Pump {
    /// Starts it.
    pub(super) fn start(engine: Engine, metrics: Arc<Metrics>) -> Self {
        let (orders, receive) = mpsc::unbounded_channel();
        tokio::spawn(run(engine, receive, metrics));
        Self { orders }
    }

    /// Takes a request. `id` is unique in this process.
    pub(super) async fn submit(
        &self,
        id: u64,
        prompt: Vec<u32>,
        answer: Vec<u32>,
    ) -> Result<Ticket, Refusal> {
        let (tokens, receive) = mpsc::unbounded_channel();
        let (taken, told) = tokio::sync::oneshot::channel();
        let ask = Ask { id, prompt, answer };
        self.orders.send(Order::Submit { ask, tokens, taken }).ok();
        let ticket = Ticket {
            id,
            tokens: receive,
            orders: self.orders.clone(),
        };
        told.await.unwrap_or(Ok(())).map(|()| ticket)
    }

    pub(super) fn clear_cache(&self) {
        self.orders.send(Order::ClearCache).ok();
    }
}

async fn run(
    mut engine: Engine,
    mut orders: mpsc::UnboundedReceiver<Order>,
    metrics: Arc<Metrics>,
) {
    let start = Instant::now();
    let mut listeners: BTreeMap<u64, mpsc::UnboundedSender<Token>> = BTreeMap::new();
    loop {
        let due = engine.due().map(|due| start + due);
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => {
                let Some(order) = order else { return };
                let now = start.elapsed();
                deliver(&engine.advance(now), &mut listeners, &metrics);
                match order {
                    Order::Submit { ask, tokens, taken } => {
                        let id = ask.id;
                        let submitted = engine.submit(ask, now);
                        if submitted.is_ok() {
                            listeners.insert(id, tokens);
                        }
                        taken.send(submitted).ok();
                    }
                    Order::Cancel(id) => {
                        if listeners.remove(&id).is_some() {
                            engine.cancel(id);
                        }
                    }
                    Order::ClearCache => engine.clear_cache(),
                }
            }
            () = wait => deliver(&engine.advance(start.elapsed()), &mut listeners, &metrics),
        }
        metrics.engine_is(&engine);
    }
}

fn deliver(
    tokens: &[Token],
    listeners: &mut BTreeMap<u64, mpsc::UnboundedSender<Token>>,
    metrics: &Metrics,
) {
    for token in tokens {
        metrics.token(token);
        if let Some(listener) = listeners.get(&token.id) {
            listener.send(*token).ok();
        }
        if token.last {
            listeners.remove(&token.id);
        }
    }
}
