//! Machines of fake clouds as simulated nodes: what the books of a fake cloud say runs joins the cluster, as a machine
//! with a real kubelet would, and leaves it when the cloud has ended it. The node object itself is taken away by
//! whoever rented the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warp_cloud::State;
use warp_cloud::fake::Rented;
use warp_runtime::cache::{Cache, Shape as Kept, Source, fill};

use super::fleet::{Fleet, Shape};
use super::host::{self, Host};
use super::runtime::Runtime;
use crate::controllers::Clock;

/// On the ConfigMaps that are books.
const LABEL: &str = "gpu.warp.dev/fake-cloud";
/// Of one GPU of a machine.
const CPUS: u32 = 12;
const MEMORY_GIB: u32 = 96;
/// A machine whose node could not be registered is tried again after this.
const RETRY: Duration = Duration::from_secs(2);

/// Runs the machines of all fake clouds until `shutdown`.
pub async fn run(
    client: kube::Client,
    clock: Clock,
    runtime: Arc<dyn Runtime>,
    options: host::Options,
    shutdown: CancellationToken,
) {
    let books = Cache::<ConfigMap>::shaped(Kept {
        keep: |_| true,
        trim: |_| {},
        indexes: &[],
    });
    let source = Source::all::<ConfigMap>().labels(LABEL);
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    books.listen(move |_, _| notify.notify_one());
    let feed = fill(client.clone(), source, &books, shutdown.clone());
    let (tasks, mut hosts) = (TaskTracker::new(), BTreeMap::new());
    let work = async {
        loop {
            let now = clock.now();
            let machines = machines(&books.all());
            settle(&machines, &mut hosts, now, |machine, stop| {
                let host = Host {
                    client: client.clone(),
                    clock: clock.clone(),
                    shapes: vec![shape(machine)],
                    runtime: Arc::clone(&runtime),
                    reports: None,
                    options: options.clone(),
                };
                tasks.spawn(keep(host, stop));
            });
            let due = due(&machines, now);
            let wait = async {
                match due {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                () = wait => {}
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = feed => {}
        () = work => {}
    }
    for stop in hosts.into_values() {
        stop.cancel();
    }
    tasks.close();
    tasks.wait().await;
}

/// Runs one machine until it is told to stop. A server that does not take the node is asked again.
async fn keep(host: Host, stop: CancellationToken) {
    let Host {
        client,
        clock,
        shapes,
        runtime,
        options,
        ..
    } = host;
    loop {
        let host = Host {
            client: client.clone(),
            clock: clock.clone(),
            shapes: shapes.clone(),
            runtime: Arc::clone(&runtime),
            reports: None,
            options: options.clone(),
        };
        match host.run(stop.clone()).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "a rented machine could not join"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Every machine in the books. Books that cannot be read have none; the provider says so itself.
fn machines(books: &[Arc<ConfigMap>]) -> Vec<Rented> {
    let texts = books
        .iter()
        .filter_map(|books| books.data.as_ref()?.get("machines"));
    let read = |text: &String| serde_json::from_str::<Vec<Rented>>(text).ok();
    let machines = texts.filter_map(read).flatten();
    // A container is no machine: whoever rented it keeps its node.
    machines
        .filter(|machine| machine.container.is_none())
        .collect()
}

/// Starts a host for every machine that runs and stops those of machines that do not.
fn settle(
    machines: &[Rented],
    hosts: &mut BTreeMap<String, CancellationToken>,
    now: Timestamp,
    start: impl Fn(&Rented, CancellationToken),
) {
    let runs = |machine: &&Rented| {
        matches!(
            machine.state(now),
            State::Running | State::Terminating | State::Preempted
        )
    };
    let running: BTreeMap<&str, &Rented> = machines
        .iter()
        .filter(runs)
        .map(|machine| (machine.name.as_str(), machine))
        .collect();
    hosts.retain(|name, stop| {
        let stays = running.contains_key(name.as_str());
        if !stays {
            stop.cancel();
        }
        stays
    });
    for (name, machine) in running {
        hosts.entry(name.to_owned()).or_insert_with(|| {
            let stop = CancellationToken::new();
            start(machine, stop.clone());
            stop
        });
    }
}

/// How long until the next machine starts or ends by itself.
fn due(machines: &[Rented], now: Timestamp) -> Option<Duration> {
    let times = machines
        .iter()
        .flat_map(|machine| [Some(machine.boots), machine.ended])
        .flatten();
    let next = times.filter(|time| *time > now).min()?;
    Some(Duration::try_from(next.duration_since(now)).unwrap_or_default())
}

/// The node of a machine: labels from the catalogue, its region, its price for one GPU and hour.
fn shape(machine: &Rented) -> Shape {
    let each = machine.price / warp_cloud::Decimal::from(machine.gpus.max(1));
    let text = format!(
        "pools:\n- name: rented\n  gpu: {}\n  gpus: {}\n  cpu: {}\n  memory: {}Gi\n  region: {}\n  provider: fake\n  labels:\n    gpu.warp.dev/gpu-hour-price: \"{}\"\n    gpu.warp.dev/rented: \"true\"\n",
        machine.gpu,
        machine.gpus,
        machine.gpus * CPUS,
        machine.gpus * MEMORY_GIB,
        machine.region,
        each.round_dp(4).normalize(),
    );
    let fleet = Fleet::parse(&text, "a rented machine").unwrap_or_default();
    let mut shape = fleet.nodes.into_iter().next().unwrap_or_else(|| Shape {
        name: String::new(),
        provider: "fake".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        capacity: BTreeMap::new(),
        devices: BTreeMap::new(),
        address: String::new(),
        runtime: String::new(),
    });
    shape.name.clone_from(&machine.name);
    let own = [
        ("kubernetes.io/hostname", machine.name.clone()),
        (
            "node.kubernetes.io/instance-type",
            machine.instance_type.clone(),
        ),
    ];
    shape
        .labels
        .extend(own.map(|(key, value)| (key.to_owned(), value)));
    shape
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn machine(name: &str, boots: &str, ended: Option<&str>) -> Rented {
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        Rented {
            id: name.to_owned(),
            name: name.to_owned(),
            owner: String::new(),
            gpu: "H100-80GB".to_owned(),
            gpus: 2,
            region: "us-east-1".to_owned(),
            instance_type: "h100-80gbx2".to_owned(),
            price: warp_cloud::Decimal::new(580, 2),
            spot: false,
            launched: time("2026-11-16T12:00:00Z"),
            boots: time(boots),
            ended: ended.map(time),
            preempted: false,
            notice: None,
            container: None,
        }
    }

    #[test]
    fn machines_that_run_have_a_host_and_others_have_none() {
        let machines = [
            machine("starts", "2026-11-16T12:10:00Z", None),
            machine("runs", "2026-11-16T12:00:05Z", None),
            machine("over", "2026-11-16T12:00:05Z", Some("2026-11-16T12:01:00Z")),
        ];
        let (started, mut hosts) = (RefCell::new(Vec::new()), BTreeMap::new());
        let now = "2026-11-16T12:05:00Z".parse().expect("a time");
        let start = |machine: &Rented, _| started.borrow_mut().push(machine.name.clone());
        settle(&machines, &mut hosts, now, start);
        settle(&machines, &mut hosts, now, start);
        assert_eq!(*started.borrow(), ["runs"], "once");
        assert_eq!(due(&machines, now), Some(Duration::from_mins(5)));
        let stop = hosts["runs"].clone();
        settle(&machines[..1], &mut hosts, now, start);
        assert!(stop.is_cancelled() && hosts.is_empty());
    }

    #[test]
    fn a_machine_is_a_node_with_its_gpus_price_and_place() {
        let shape = shape(&machine("m", "2026-11-16T12:00:05Z", None));
        assert_eq!(shape.name, "m");
        assert_eq!(shape.devices["nvidia.com/gpu"], 2);
        assert_eq!(shape.labels["gpu.warp.dev/gpu-hour-price"], "2.9");
        assert_eq!(shape.labels["topology.kubernetes.io/region"], "us-east-1");
        assert_eq!(
            shape.labels["nvidia.com/gpu.product"],
            "NVIDIA-H100-80GB-HBM3"
        );
        assert_eq!(shape.labels["gpu.warp.dev/provider"], "fake");
    }
}
