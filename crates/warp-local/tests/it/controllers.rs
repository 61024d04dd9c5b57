//! Our controllers and scheduler beside Kubernetes' own: the same scenarios, the same API server, the same simulated
//! nodes, equal ends.

mod embedded;
mod judge;
mod loss;
mod play;
mod script;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use warp_local::controllers::{Clock, Options, run};
use warp_testkit::{Cluster, NodeShape};

use self::play::Stage;
use self::script::Scenario;

const FILES: [&str; 6] = [
    include_str!("controllers/scenarios/jobs.yaml"),
    include_str!("controllers/scenarios/garbage.yaml"),
    include_str!("controllers/scenarios/workloads.yaml"),
    include_str!("controllers/scenarios/statefulsets.yaml"),
    include_str!("controllers/scenarios/placement.yaml"),
    include_str!("controllers/scenarios/differences.yaml"),
];
/// Scenarios played at once on each cluster.
const TOGETHER: usize = 24;
/// How long our end may take to become the real one's after both were reached.
const AGREEMENT: Duration = Duration::from_mins(3);

fn scenarios() -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for file in FILES {
        let scenarios: Vec<Scenario> =
            serde_saphyr::from_str(file).context("failed to read a scenario file")?;
        all.extend(scenarios);
    }
    Ok(all)
}

/// Small nodes take only pods that ask for their pool, so that a scenario can fill one without meeting others.
fn nodes() -> [(NodeShape, usize); 6] {
    let small = |pool: &str| {
        NodeShape::cpu()
            .named(pool)
            .resource("cpu", "4")
            .label("pool", pool)
            .taint("small", "", "NoSchedule")
    };
    [
        (NodeShape::cpu(), 3),
        (NodeShape::h100(8), 1),
        (small("small"), 1),
        (small("ranks"), 1),
        (small("guarded"), 2),
        (small("polite"), 1),
    ]
}

/// A cluster whose controllers and scheduler are ours.
struct Ours {
    cluster: Cluster,
    shutdown: CancellationToken,
}

impl Ours {
    async fn start() -> Result<Self> {
        let mut builder = Cluster::real().api_server_only();
        for (shape, count) in nodes() {
            builder = builder.nodes(shape, count);
        }
        let cluster = builder.start().await?;
        let shutdown = CancellationToken::new();
        let options = Options {
            root_ca: Some("a certificate".to_owned()),
            ..Options::default()
        };
        let client = cluster.client().await?;
        tokio::spawn(run(client, Clock::system(), options, shutdown.clone()));
        Ok(Self { cluster, shutdown })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn theirs() -> Result<Cluster> {
    let mut builder = Cluster::real();
    for (shape, count) in nodes() {
        builder = builder.nodes(shape, count);
    }
    builder.start().await
}

/// Waits until no node refuses pods for being new.
async fn open_nodes(cluster: &Cluster) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    let tainted = |node: &Node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.taints.as_ref())
            .is_some_and(|taints| taints.iter().any(|taint| taint.key.contains("not-ready")))
    };
    let mut changes = warp_testkit::changes(nodes.clone());
    let open = async {
        while changes.next().await.is_some() {
            let all = nodes.list(&ListParams::default()).await?.items;
            if !all.iter().any(tainted) {
                return Ok(());
            }
        }
        bail!("the watch of nodes ended")
    };
    tokio::time::timeout(warp_testkit::PATIENCE, open)
        .await
        .context("nodes refuse pods for being new")?
}

/// The page lists exactly the scenarios that may end differently: any other difference fails the test below.
#[test]
fn the_reference_page_lists_every_known_difference_of_the_controllers() -> Result<()> {
    let all = scenarios()?;
    let lines = all.iter().filter_map(|scenario| {
        let why = scenario.differs.as_ref()?;
        Some(format!("- {why} (`{}`)\n", scenario.name))
    });
    let text: String = lines.collect();
    warp_testkit::page::check_part("docs/reference/embedded.md", "controllers", &text)
}

/// Plays every scenario on both clusters and compares how they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenarios_end_as_with_kube_controller_manager_and_kube_scheduler() -> Result<()> {
    let (theirs, ours) = tokio::try_join!(theirs(), Ours::start())?;
    tokio::try_join!(open_nodes(&theirs), open_nodes(&ours.cluster))?;
    let mut all = scenarios()?;
    if let Ok(only) = std::env::var("WARP_SCENARIO") {
        all.retain(|scenario| scenario.name.contains(&only));
    }
    assert!(
        std::env::var("WARP_SCENARIO").is_ok() || all.len() >= 40,
        "only {} scenarios",
        all.len()
    );
    let (theirs, ours) = (Arc::new(theirs), Arc::new(ours));
    let outcomes: Vec<(String, Result<()>)> = stream::iter(all)
        .map(|scenario| {
            let (theirs, ours) = (theirs.clone(), ours.clone());
            async move {
                let name = scenario.name.clone();
                let outcome = compare(&scenario, &theirs, &ours.cluster).await;
                (name, outcome)
            }
        })
        .buffer_unordered(TOGETHER)
        .collect()
        .await;
    let failed: BTreeMap<_, _> = outcomes
        .iter()
        .filter_map(|(name, outcome)| Some((name, format!("{:#}", outcome.as_ref().err()?))))
        .collect();
    for (name, error) in &failed {
        eprintln!("--- {name}\n{error}\n");
    }
    assert!(
        failed.is_empty(),
        "{} of {} scenarios differ: {:?}",
        failed.len(),
        outcomes.len(),
        failed.keys()
    );
    Ok(())
}

async fn compare(scenario: &Scenario, theirs: &Cluster, ours: &Cluster) -> Result<()> {
    let (real, mine) = tokio::join!(Stage::open(theirs, scenario), Stage::open(ours, scenario));
    let (real, mine) = (real.context("kubernetes")?, mine.context("warp")?);
    let (there, here) = tokio::join!(real.play(scenario), mine.play(scenario));
    there.context("kubernetes")?;
    here.context("warp")?;
    let wanted = judge::settled(&real, scenario).await?;
    if scenario.differs.is_some() {
        let found = judge::settled(&mine, scenario).await?;
        ensure!(
            found != wanted,
            "both end alike: take `differs` away and update the reference page"
        );
        return Ok(());
    }
    agree(&wanted, &real, &mine, scenario).await
}

/// Waits until both ends are equal; both may still move.
async fn agree(wanted: &Value, real: &Stage, mine: &Stage, scenario: &Scenario) -> Result<()> {
    let mut wanted = wanted.clone();
    let mut found = judge::end(mine, scenario).await?;
    let deadline = tokio::time::Instant::now() + AGREEMENT;
    let (there, here) = (
        judge::changes(real, scenario)?,
        judge::changes(mine, scenario)?,
    );
    let mut changes = stream::select(there, here);
    while found != wanted {
        if tokio::time::timeout_at(deadline, changes.next())
            .await
            .is_err()
        {
            bail!("{}", judge::difference(&wanted, &found));
        }
        wanted = judge::end(real, scenario).await?;
        found = judge::end(mine, scenario).await?;
    }
    Ok(())
}
