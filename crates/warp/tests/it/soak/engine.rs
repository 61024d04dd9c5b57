//! `warp up` as a process, with its own nodes. Its operator talks to its API within the process, so
//! that what can go wrong between the two is the process and the nodes, not the connection.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::{Process, Signal, until};

use super::{Half, PATIENCE, Place, events_kept, tail};

pub(super) struct Engine {
    data: PathBuf,
    state: Mutex<(Option<Process>, Option<Client>)>,
    _folder: tempfile::TempDir,
}

impl Engine {
    pub(super) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let fleet = "pools:\n- {name: steady, count: 4, gpu: H100-80GB, gpus: 8}\n- {name: flaky, count: 2, gpu: H100-80GB, gpus: 8}\n";
        std::fs::write(folder.path().join("fleet.yaml"), fleet)?;
        let engine = Self {
            data,
            state: Mutex::new((None, None)),
            _folder: folder,
        };
        engine.begin().await?;
        Ok(engine)
    }

    async fn begin(&self) -> Result<()> {
        let folder = self.data.parent().context("a folder")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .args(["up", "--port", "0", "--data"])
            .arg(&self.data)
            .arg(format!("--event-ttl={}s", events_kept().as_secs()))
            .arg("--nodes")
            .arg(folder.join("fleet.yaml"));
        let mut process = Process::start("warp up", &command, &folder.join("output"))?;
        let own = format!("\"pid\": {}", process.pid());
        let note = self.data.join("up.json");
        until("warp to be up", PATIENCE, || {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            let (up, running) = (text.contains(&own), process.is_running());
            let log = (!running).then(|| process.log_tail(30));
            async move {
                if let Some(log) = log {
                    bail!("warp up has ended while it started\n{log}");
                }
                Ok(up.then_some(()))
            }
        })
        .await?;
        let kubeconfig = Kubeconfig::read_from(self.data.join("kubeconfig"))?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.default_retry = false;
        *self.state.lock().unwrap() = (Some(process), Some(Client::try_from(config)?));
        Ok(())
    }
}

impl Place for Engine {
    fn client(&self) -> Client {
        self.state
            .lock()
            .unwrap()
            .1
            .clone()
            .expect("an engine that was started")
    }

    fn pids(&self) -> Vec<u32> {
        let state = self.state.lock().unwrap();
        state.0.iter().map(Process::pid).collect()
    }

    async fn trouble(&self, half: Half, random: &mut Random) -> Result<&'static str> {
        match random.below(3) {
            0 if half == Half::Rough => {
                let process = self.state.lock().unwrap().0.take();
                if let Some(mut process) = process {
                    process.signal(Signal::Kill)?;
                    process.wait(PATIENCE).await?;
                }
                self.begin().await?;
                Ok("engine killed")
            }
            1 => {
                flaky(&self.client(), &json!("true")).await?;
                Ok("nodes lost")
            }
            _ => {
                flaky(&self.client(), &Value::Null).await?;
                Ok("nodes back")
            }
        }
    }

    async fn stands(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if let Some(process) = &mut state.0
            && let Some(code) = process.exit_code()?
        {
            bail!(
                "warp up has ended by itself with {code}\n{}",
                process.log_tail(30)
            );
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        flaky(&self.client(), &Value::Null).await
    }

    fn requests(&self) -> Result<String> {
        Ok(String::new())
    }

    fn log(&self) -> String {
        tail(&self.data.join("warp.log"))
    }
}

/// Makes the flaky nodes of a simulated fleet fall silent or come back.
async fn flaky(client: &Client, lost: &Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await? {
        if node.name_any().starts_with("flaky") {
            let patch = json!({"metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": lost}}});
            nodes
                .patch(
                    &node.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await?;
        }
    }
    Ok(())
}
