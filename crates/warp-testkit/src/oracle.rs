//! The real kube-scheduler, asked on which nodes a pod fits and how it scores them.
//!
//! Owns: a scheduler that shows the nodes its filters leave, and the one it chose, to an extender in
//! this process, which notes them and refuses to bind, so that a question changes nothing. Must not
//! filter or score itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, SCHEDULER_LOG};
use crate::wait::PATIENCE;

/// The namespace of every pod the oracle is asked about.
pub const NAMESPACE: &str = "asked";

/// What the scheduler said of a pod.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The nodes its filters left.
    pub fits: BTreeSet<String>,
    /// The sum of its plugins' scores, by node; empty where fewer than two nodes were left.
    pub scores: BTreeMap<String, i64>,
    /// The same by plugin.
    pub plugins: BTreeMap<(String, String), i64>,
    /// The node it would have bound the pod to.
    pub chosen: Option<String>,
}

impl Answer {
    /// The nodes it chooses from: those of the highest score.
    pub fn best(&self) -> BTreeSet<String> {
        let highest = self.scores.values().max();
        let all = self.fits.iter();
        all.filter(|node| self.scores.get(*node) == highest)
            .cloned()
            .collect()
    }
}

/// What the extender was told, by pod uid.
#[derive(Debug, Default)]
struct Answers {
    passed: Mutex<BTreeMap<String, BTreeSet<String>>>,
    chosen: Mutex<BTreeMap<String, String>>,
    changed: Notify,
}

/// A scheduler that answers and never binds.
pub struct SchedulerOracle {
    client: Client,
    answers: Arc<Answers>,
    server: JoinHandle<()>,
    log: PathBuf,
    _cluster: Cluster,
}

impl std::fmt::Debug for SchedulerOracle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SchedulerOracle").finish_non_exhaustive()
    }
}

impl SchedulerOracle {
    pub async fn start() -> Result<Self> {
        let answers = Arc::<Answers>::default();
        let routes = Router::new()
            .route("/filter", post(filter))
            .route("/bind", post(bind))
            .with_state(answers.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let server = tokio::spawn(async move {
            // Ends with the oracle; a failure shows as a question without an answer.
            let _ = axum::serve(listener, routes).await;
        });
        let cluster = Cluster::real().scheduler_only(port).start().await?;
        let client = cluster.client().await?;
        let oracle = Self {
            client,
            answers,
            server,
            log: cluster.folder().join(SCHEDULER_LOG),
            _cluster: cluster,
        };
        oracle.prepare().await?;
        Ok(oracle)
    }

    /// No controllers run, so what they would make is made here.
    async fn prepare(&self) -> Result<()> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let account = serde_json::from_value(json!({
            "metadata": {"name": "default"}, "automountServiceAccountToken": false,
        }))?;
        Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE)
            .create(&PostParams::default(), &account)
            .await?;
        Ok(())
    }

    /// The API server the scheduler looks at.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Adds a node exactly as given, and gives it as the API server has it.
    pub async fn add_node(&self, node: &Node) -> Result<Node> {
        let name = node.name_any();
        self.nodes().create(&PostParams::default(), node).await?;
        // Admission taints every new node until a controller has seen it ready.
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let spec = json!({"spec": {"taints": taints.unwrap_or_default()}});
        self.nodes()
            .patch(&name, &PatchParams::default(), &Patch::Merge(spec))
            .await?;
        let status = json!({"status": node.status});
        let stored = self
            .nodes()
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(stored)
    }

    /// Adds a pod that is bound already (`spec.nodeName` is set).
    pub async fn add_pod(&self, pod: &Pod) -> Result<Pod> {
        Ok(self.pods().create(&PostParams::default(), pod).await?)
    }

    /// A pod added before has ended: it holds nothing any more.
    pub async fn end_pod(&self, name: &str) -> Result<Pod> {
        let status = json!({"status": {"phase": "Failed"}});
        let params = PatchParams::default();
        Ok(self
            .pods()
            .patch_status(name, &params, &Patch::Merge(status))
            .await?)
    }

    /// A pod added before is asked to end; no kubelet confirms it, so it stays as it is.
    pub async fn stop_pod(&self, name: &str) -> Result<Pod> {
        self.pods()
            .delete(name, &DeleteParams::default().grace_period(3600))
            .await?;
        Ok(self.pods().get(name).await?)
    }

    /// Waits until the scheduler knows every node added so far.
    pub async fn settle(&self) -> Result<()> {
        let marker = format!("marker-{}", self.answers_so_far());
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": marker},
            "status": {
                "capacity": {"cpu": "1", "memory": "1Gi", "pods": "10"},
                "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))?;
        self.add_node(&node).await?;
        let asked = tokio::time::timeout(PATIENCE, async {
            loop {
                let (_, answer) = self.ask(&everywhere()?).await?;
                if answer.fits.contains(&marker) {
                    return anyhow::Ok(());
                }
            }
        });
        asked
            .await
            .context("the scheduler does not see its nodes")??;
        self.nodes()
            .delete(&marker, &DeleteParams::default())
            .await?;
        let gone = tokio::time::timeout(PATIENCE, async {
            loop {
                let (_, answer) = self.ask(&everywhere()?).await?;
                if !answer.fits.contains(&marker) {
                    return anyhow::Ok(());
                }
            }
        });
        gone.await
            .context("the scheduler still sees a removed node")?
    }

    fn answers_so_far(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.answers
            .passed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod as the API server has it, and what the scheduler said. The pod is gone afterwards.
    pub async fn ask(&self, pod: &Pod) -> Result<(Pod, Answer)> {
        let before = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        let stored = self.pods().create(&PostParams::default(), pod).await?;
        let uid = stored.uid().context("a pod without uid")?;
        let name = stored.name_any();
        let answer = tokio::time::timeout(PATIENCE, async {
            loop {
                let changed = self.answers.changed.notified();
                if let Some(chosen) = self.chosen(&uid) {
                    return anyhow::Ok(Some(chosen));
                }
                // With no node left the extender is not asked; the pod says so.
                let look = tokio::time::timeout(Duration::from_millis(20), changed);
                if look.await.is_err() && self.is_unschedulable(&name).await? {
                    return Ok(None);
                }
            }
        });
        let chosen = answer.await.context("the scheduler gave no answer")??;
        let mut answer = Answer {
            fits: self.lock().get(&uid).cloned().unwrap_or_default(),
            chosen,
            ..Answer::default()
        };
        self.read_scores(before, &name, &mut answer)?;
        self.pods()
            .delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
        Ok((stored, answer))
    }

    fn chosen(&self, uid: &str) -> Option<String> {
        let chosen = self.answers.chosen.lock();
        let chosen = chosen.unwrap_or_else(PoisonError::into_inner);
        chosen.get(uid).cloned()
    }

    /// The scores of a pod in what the scheduler logged after the first `before` bytes.
    fn read_scores(&self, before: u64, pod: &str, answer: &mut Answer) -> Result<()> {
        let mut log = File::open(&self.log)?;
        log.seek(SeekFrom::Start(before))?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        let subject = format!("pod=\"{NAMESPACE}/{pod}\"");
        for line in text.lines().filter(|line| line.contains(&subject)) {
            let value = |name: &str| {
                let (_, rest) = line.split_once(&format!(" {name}="))?;
                rest.split(' ').next().map(|word| word.trim_matches('"'))
            };
            let (Some(node), Some(score)) = (value("node"), value("score")) else {
                continue;
            };
            let (node, score) = (node.to_owned(), score.parse()?);
            if line.contains("final score") {
                answer.scores.insert(node, score);
            } else if let Some(plugin) = value("plugin") {
                answer.plugins.insert((plugin.to_owned(), node), score);
            }
        }
        Ok(())
    }

    async fn is_unschedulable(&self, name: &str) -> Result<bool> {
        let pod = self.pods().get(name).await?;
        if pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some())
        {
            bail!("'{name}' was bound although every node is refused");
        }
        let conditions = pod.status.and_then(|status| status.conditions);
        Ok(conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        }))
    }
}

impl Drop for SchedulerOracle {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A pod that asks for next to nothing and tolerates everything.
fn everywhere() -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": {"generateName": "everywhere-"},
        "spec": {
            "containers": [{"name": "main", "image": "image:1"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }))
}

fn word(arguments: &Value, pointer: &str) -> String {
    let found = arguments.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

/// Notes what the filters left and leaves it as it is.
async fn filter(State(answers): State<Arc<Answers>>, Json(arguments): Json<Value>) -> Json<Value> {
    let names = arguments["NodeNames"].clone();
    let passed = names.as_array().into_iter().flatten();
    let passed = passed.filter_map(Value::as_str).map(str::to_owned);
    answers
        .passed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(word(&arguments, "/Pod/metadata/uid"), passed.collect());
    Json(json!({"NodeNames": names}))
}

/// Notes the choice and refuses it.
async fn bind(State(answers): State<Arc<Answers>>, Json(arguments): Json<Value>) -> Json<Value> {
    answers
        .chosen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(word(&arguments, "/PodUID"), word(&arguments, "/Node"));
    answers.changed.notify_waiters();
    Json(json!({"Error": "asked only"}))
}
