//! Whom a pod of higher priority displaces and where, ours beside kube-scheduler's answer. Every bound pod has a
//! priority of its own, so one node costs least and no answer depends on which of two equal ones was looked at first.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use warp_core::random::Random;
use warp_testkit::oracle::NAMESPACE;
use warp_testkit::{PATIENCE, SchedulerOracle, changes};

use super::generate::Generator;
use super::{is_refused, read};

const BOUND: usize = 30;
/// Those who ask are more important than some of the bound pods, or than all.
const CLASSES: usize = BOUND + 10;
const ROUNDS: usize = 24;
/// How long two answers may take to become equal.
const AGREEMENT: Duration = Duration::from_secs(30);
/// kube-scheduler hears of bound and of waiting pods on two ways and may look at an older fleet: what it says of three
/// fresh ones it means.
const TRIES: usize = 3;

/// Where a pod is promised a place, and who must go for it.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    promised: Option<String>,
    displaced: BTreeSet<String>,
}

struct Side {
    pods: Api<Pod>,
}

impl Side {
    async fn open(client: Client) -> Result<Self> {
        let classes: Api<PriorityClass> = Api::all(client.clone());
        for value in 1..=CLASSES {
            for (prefix, policy) in [("takes", "PreemptLowerPriority"), ("waits", "Never")] {
                let class = json!({
                    "metadata": {"name": format!("{prefix}-{value}")},
                    "value": value, "preemptionPolicy": policy,
                });
                classes
                    .create(&PostParams::default(), &read(class)?)
                    .await?;
            }
        }
        let pods = Api::namespaced(client, NAMESPACE);
        Ok(Self { pods })
    }

    /// Makes the fleet hold these pods and no others.
    async fn furnish(&self, bound: &[Value]) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        let all = ListParams::default();
        self.pods.delete_collection(&now, &all).await?;
        let left = self.pods.list(&all).await?.items;
        ensure!(left.is_empty(), "{} pods stay", left.len());
        for pod in bound {
            let pod: Pod = read(pod.clone())?;
            self.pods.create(&PostParams::default(), &pod).await?;
        }
        Ok(())
    }

    /// What came of the pod `asked`; none while nothing has.
    async fn answer(&self, asked: &str) -> Result<Option<Answer>> {
        let all = self.pods.list(&ListParams::default()).await?.items;
        let Some(pod) = all.iter().find(|pod| pod.name_any() == asked) else {
            return Ok(None);
        };
        let promised = pod
            .status
            .as_ref()
            .and_then(|status| status.nominated_node_name.clone());
        let ending = all
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_some());
        let displaced: BTreeSet<String> = ending.map(ResourceExt::name_any).collect();
        let complete = promised.is_some() != displaced.is_empty();
        Ok((is_refused(pod) && complete).then_some(Answer {
            promised,
            displaced,
        }))
    }
}

/// Asks both, and gives both answers when they stay different.
async fn ask(
    theirs: &Side,
    ours: &Side,
    asked: &Value,
) -> Result<Result<Answer, (Option<Answer>, Option<Answer>)>> {
    let pod: Pod = read(asked.clone())?;
    let name = pod.name_any();
    for side in [theirs, ours] {
        side.pods.create(&PostParams::default(), &pod).await?;
    }
    let mut limit = Instant::now() + PATIENCE;
    let mut answered = false;
    let mut news = stream::select(changes(theirs.pods.clone()), changes(ours.pods.clone()));
    loop {
        let (there, here) = (theirs.answer(&name).await?, ours.answer(&name).await?);
        match (there, here) {
            (Some(there), Some(here)) if there == here => return Ok(Ok(there)),
            (there, here) => {
                if there.is_some() && here.is_some() && !answered {
                    answered = true;
                    limit = Instant::now() + AGREEMENT;
                }
                if timeout_at(limit, news.next()).await.is_err() {
                    return Ok(Err((there, here)));
                }
            }
        }
    }
}

/// Bound pods of different priorities on random nodes, and one that wants to be there too.
fn round(generator: &mut Generator, random: &mut Random, nodes: &[String]) -> (Vec<Value>, Value) {
    let mut priorities: Vec<usize> = (1..=BOUND).collect();
    for place in (1..BOUND).rev() {
        priorities.swap(place, random.below(place + 1));
    }
    let bound = priorities.into_iter().map(|priority| {
        let mut pod = generator.bound_pod(&nodes[random.below(nodes.len())]);
        pod["spec"]["priorityClassName"] = json!(format!("takes-{priority}"));
        pod
    });
    let bound = bound.collect();
    let mut asked = generator.question(nodes);
    // Large enough to fit nowhere as it is, most of the time, and often with nothing else against it.
    asked["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
    if random.below(3) > 0 {
        for field in ["affinity", "nodeSelector", "topologySpreadConstraints"] {
            asked["spec"][field] = Value::Null;
        }
        asked["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    }
    let priority = BOUND / 2 + random.below(CLASSES - BOUND / 2) + 1;
    asked["spec"]["priorityClassName"] = json!(format!("takes-{priority}"));
    (bound, asked)
}

/// What both made of pods that fit nowhere, as text for people where it differs.
pub(super) async fn differences(
    seed: u64,
    oracle: &SchedulerOracle,
    ours: &Client,
    nodes: &[String],
) -> Result<Vec<String>> {
    let theirs = Side::open(oracle.client().clone()).await?;
    let ours = Side::open(ours.clone()).await?;
    let (mut generator, mut random) = (Generator::new(seed + 1000), Random::new(seed + 1000));
    let mut differing = Vec::new();
    let (mut promised, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let (bound, asked) = round(&mut generator, &mut random, nodes);
        let mut last = None;
        for _ in 0..TRIES {
            theirs.furnish(&bound).await?;
            ours.furnish(&bound).await?;
            // The same pod without the right to displace anybody: one that fits has no need to.
            let mut patient = asked.clone();
            let class = asked["spec"]["priorityClassName"]
                .as_str()
                .unwrap_or_default();
            patient["spec"]["priorityClassName"] = json!(class.replace("takes", "waits"));
            if !oracle.ask(&read(patient)?).await?.1.fits.is_empty() {
                last = None;
                break;
            }
            match ask(&theirs, &ours, &asked).await? {
                Ok(answer) => {
                    promised += usize::from(answer.promised.is_some());
                    refused += usize::from(answer.promised.is_none());
                    last = None;
                    break;
                }
                Err(answers) => last = Some(answers),
            }
        }
        if let Some((there, here)) = last {
            differing.push(format!(
                "seed {seed}: kube-scheduler says {there:?}, ours {here:?}: {asked} among {bound:?}"
            ));
        }
    }
    eprintln!("seed {seed}: {promised} displaced others, {refused} could not");
    assert!(
        !differing.is_empty() || promised > 0,
        "nobody displaced anybody, {refused} could not"
    );
    Ok(differing)
}
