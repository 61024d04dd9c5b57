//! What the server counts.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::store::Store;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    method: String,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Method {
    method: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Resource {
    resource: String,
}

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 4.0, 9))
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    durations: Family<Method, Histogram>,
    watches: Gauge,
    events: Counter,
    revision: Gauge,
    objects: Family<Resource, Gauge<i64, AtomicI64>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("warp_apiserver");
        let requests = Family::default();
        registry.register("requests", "Requests answered", requests.clone());
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register_with_unit(
            "request_duration",
            "Time until an answer began",
            Unit::Seconds,
            durations.clone(),
        );
        let watches = Gauge::default();
        registry.register("watches", "Watches open now", watches.clone());
        let events = Counter::default();
        registry.register("watch_events", "Events handed to watchers", events.clone());
        let revision = Gauge::default();
        registry.register(
            "store_revision",
            "Newest visible revision",
            revision.clone(),
        );
        let objects = Family::default();
        registry.register("store_objects", "Objects stored", objects.clone());
        Self {
            registry,
            requests,
            durations,
            watches,
            events,
            revision,
            objects,
        }
    }

    pub(crate) fn request(&self, method: &str, resource: &str, code: u16, took: Duration) {
        // What a client invents must not grow the set of labels.
        let method = METHODS
            .into_iter()
            .find(|known| *known == method)
            .unwrap_or("other");
        let labels = Request {
            method: method.to_owned(),
            resource: resource.to_owned(),
            code,
        };
        self.requests.get_or_create(&labels).inc();
        let labels = Method {
            method: method.to_owned(),
        };
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn watch_opened(&self) {
        self.watches.inc();
    }

    pub(crate) fn watch_closed(&self) {
        self.watches.dec();
    }

    pub(crate) fn watch_events(&self, count: u64) {
        self.events.inc_by(count);
    }

    pub(crate) fn render(&self, store: &Store) -> String {
        self.revision
            .set(i64::try_from(store.revision()).unwrap_or(i64::MAX));
        for table in store.tables() {
            let labels = Resource {
                resource: table.name().to_owned(),
            };
            let count = i64::try_from(table.len()).unwrap_or(i64::MAX);
            self.objects.get_or_create(&labels).set(count);
        }
        let mut text = String::new();
        // Writing into a string has no way to fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
