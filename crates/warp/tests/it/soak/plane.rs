//! A real control plane with two operators, one of which leads; each reaches the API server only
//! through weather of its own.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Result, bail, ensure};
use kube::Client;
use warp_core::random::Random;
use warp_testkit::fault::judge::careless;
use warp_testkit::fault::{Faults, Plan, Tally};
use warp_testkit::{Cluster, NodeShape, Process, Signal, until};

use super::weather::{self, Gate};
use super::{Half, PATIENCE, Place, events_kept, judge, tail};

/// What an operator says when it ends because it could not renew its lease. It is meant to: whoever
/// runs it starts it afresh.
const LOST: &str = "failed to keep the lease";

struct Operator {
    process: Process,
    gate: Gate,
    log: PathBuf,
}

/// What became of requests under weather that has passed.
#[derive(Default)]
struct Passed {
    tally: Tally,
    careless: Vec<String>,
    storms: usize,
    leases_lost: usize,
    last: String,
}

pub(super) struct ControlPlane {
    cluster: Cluster,
    client: Client,
    /// With the rights of the shipped role.
    rights: Client,
    operators: Mutex<Vec<Operator>>,
    started: std::sync::atomic::AtomicUsize,
    passed: Mutex<Passed>,
}

impl ControlPlane {
    pub(super) async fn start() -> Result<Self> {
        let cluster = Cluster::real()
            .quick_node_loss()
            .events_kept_for(events_kept())
            .nodes(NodeShape::h100(8).named("steady"), 4)
            .nodes(NodeShape::h100(8).named("flaky").in_group("flaky"), 2)
            .start()
            .await?;
        let print = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["install", "--print"])
            .output()?;
        let manifests = String::from_utf8(print.stdout)?;
        cluster
            .kubectl()
            .run_with(&["apply", "-f", "-"], &manifests)
            .await?;
        let client = cluster.client().await?;
        let rights = cluster.client_as("warp-system", "warp-operator").await?;
        let place = Self {
            cluster,
            client,
            rights,
            operators: Mutex::default(),
            started: 0.into(),
            passed: Mutex::default(),
        };
        place.operator(Plan::default()).await?;
        place.operator(Plan::default()).await?;
        until("the kind is served", PATIENCE, || async {
            Ok(judge::left(&place.client).await.ok())
        })
        .await?;
        Ok(place)
    }

    async fn operator(&self, plan: Plan) -> Result<()> {
        let number = self
            .started
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let gate = Gate::open(self.rights.clone(), plan).await?;
        let folder = self.cluster.folder();
        let kubeconfig = gate.write_kubeconfig(&folder, &format!("gate-{number}"))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .args([
                "operator",
                "--leader-elect",
                "--health-addr=127.0.0.1:0",
                "--metrics-addr=127.0.0.1:0",
            ])
            // Node loss is noticed within seconds here, so attempts on lost nodes end soon too.
            .args(["--node-loss-timeout=20s"])
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", "warp-system");
        let log = folder.join(format!("operator-{number}.log"));
        let process = Process::start("warp operator", &command, &log)?;
        self.operators
            .lock()
            .unwrap()
            .push(Operator { process, gate, log });
        Ok(())
    }

    /// Notes what weather did that is over.
    fn over(&self, faults: &Faults) {
        let mut passed = self.passed.lock().unwrap();
        for (kind, count) in faults.tally() {
            *passed.tally.entry(kind).or_default() += count;
        }
        passed.careless.extend(careless(&faults.records()));
    }

    /// Gives every operator the same new weather, each its own count of requests.
    fn change_weather(&self, make: impl Fn() -> Faults) {
        let operators = self.operators.lock().unwrap();
        let before: Vec<Faults> = operators
            .iter()
            .map(|operator| operator.gate.change(make()))
            .collect();
        drop(operators);
        for faults in &before {
            self.over(faults);
        }
    }

    fn remember(&self, plan: &Plan) {
        let mut passed = self.passed.lock().unwrap();
        passed.storms += 1;
        passed.last = plan.to_string();
    }
}

impl Place for ControlPlane {
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn pids(&self) -> Vec<u32> {
        let operators = self.operators.lock().unwrap();
        operators.iter().map(|one| one.process.pid()).collect()
    }

    async fn trouble(&self, half: Half, random: &mut Random) -> Result<&'static str> {
        let plan = weather::storm(random);
        match random.below(5) {
            0 | 1 if half == Half::Rough => {
                let mut killed = self.operators.lock().unwrap().remove(0);
                killed.process.signal(Signal::Kill)?;
                killed.process.wait(PATIENCE).await?;
                self.over(&killed.gate.change(Faults::none()));
                self.remember(&plan);
                self.operator(plan).await?;
                Ok("operator killed")
            }
            2 => {
                self.cluster.lose("flaky");
                Ok("nodes lost")
            }
            3 => {
                self.cluster.recover("flaky")?;
                Ok("nodes back")
            }
            _ => {
                self.remember(&plan);
                self.change_weather(|| Faults::new(plan.clone()));
                Ok("API storm")
            }
        }
    }

    async fn stands(&self) -> Result<()> {
        let mut ended = Vec::new();
        {
            let mut operators = self.operators.lock().unwrap();
            let mut place = 0;
            while place < operators.len() {
                match operators[place].process.exit_code()? {
                    Some(code) => ended.push((code, operators.remove(place))),
                    None => place += 1,
                }
            }
        }
        for (code, operator) in ended {
            let log = tail(&operator.log);
            if !log.contains(LOST) {
                bail!("an operator has ended by itself with {code}\n{log}");
            }
            self.over(&operator.gate.change(Faults::none()));
            self.passed.lock().unwrap().leases_lost += 1;
            self.operator(Plan::default()).await?;
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        self.change_weather(|| {
            let calm = Faults::none();
            calm.disarm();
            calm
        });
        self.cluster.recover("flaky")
    }

    fn requests(&self) -> Result<String> {
        let passed = self.passed.lock().unwrap();
        ensure!(
            passed.careless.is_empty(),
            "requests without care: {}",
            passed.careless.join("; ")
        );
        ensure!(
            passed.storms == 0 || !passed.tally.is_empty(),
            "{} storms met no request",
            passed.storms
        );
        // Each storm may cost one lease; more are lost for another reason.
        ensure!(
            passed.leases_lost <= passed.storms,
            "{} leases were lost in {} storms",
            passed.leases_lost,
            passed.storms
        );
        let tally: Vec<String> = passed
            .tally
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        Ok(format!(
            "{} plans ({}), {} leases lost, ",
            passed.storms,
            tally.join(", "),
            passed.leases_lost
        ))
    }

    fn log(&self) -> String {
        let operators = self.operators.lock().unwrap();
        let logs: Vec<String> = operators.iter().map(|one| tail(&one.log)).collect();
        let passed = self.passed.lock().unwrap();
        format!("weather: {}\n{}", passed.last, logs.join("\n---\n"))
    }
}
