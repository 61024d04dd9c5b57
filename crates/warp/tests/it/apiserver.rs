//! `warp apiserver` as a process: what is acknowledged survives kill -9.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;
use warp_testkit::{PATIENCE, until};

/// Objects made before the plug is pulled.
const ENOUGH: u32 = 24;

/// A server process that does not outlive the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(data: &Path) -> Server {
    let kubeconfig = data.join("kubeconfig");
    let _ = std::fs::remove_file(&kubeconfig);
    let child = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["apiserver", "--port", "0", "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts");
    Server(child)
}

/// A client of a server that answers.
async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    client.apiserver_version().await?;
    Ok(client)
}

/// A client once the server answers.
pub(crate) async fn client(data: &Path) -> Client {
    let kubeconfig = data.join("kubeconfig");
    until("the server answers", PATIENCE, async || {
        Ok(connect(&kubeconfig).await.ok())
    })
    .await
    .expect("the server answers")
}

/// Writes until the server is gone; returns what was acknowledged: name and last value. Every creation
/// is a permit of `made`.
async fn write(maps: Api<ConfigMap>, prefix: String, made: Arc<Semaphore>) -> Vec<(String, u32)> {
    let mut acknowledged = Vec::new();
    for number in 0_usize.. {
        let name = format!("{prefix}-{number}");
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.clone());
        map.data = Some([("value".to_owned(), "0".to_owned())].into());
        if maps.create(&PostParams::default(), &map).await.is_err() {
            break;
        }
        acknowledged.push((name.clone(), 0));
        made.add_permits(1);
        let patch = json!({"data": {"value": "1"}});
        if maps
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .is_err()
        {
            break;
        }
        acknowledged.last_mut().expect("just pushed").1 = 1;
    }
    acknowledged
}

/// Name and value of a whole object.
fn shown(map: &ConfigMap) -> (String, u32) {
    assert!(map.metadata.uid.is_some() && map.metadata.resource_version.is_some());
    let value = &map.data.as_ref().expect("data")["value"];
    (map.name_any(), value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    let kills: usize = std::env::var("WARP_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3);
    let folder = tempfile::tempdir().expect("a folder");
    let mut known: Vec<(String, u32)> = Vec::new();
    for round in 0..kills {
        let server = start(folder.path());
        let maps: Api<ConfigMap> = Api::default_namespaced(client(folder.path()).await);
        let stored = maps.list(&ListParams::default()).await.expect("a list");
        let shown: BTreeMap<String, u32> = stored.iter().map(shown).collect();
        for (name, value) in &known {
            let now = shown.get(name);
            let now = now.unwrap_or_else(|| panic!("{name} was acknowledged and is gone"));
            assert!(now >= value, "{name} went back to {now} from {value}");
        }
        let made = Arc::new(Semaphore::new(0));
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let prefix = format!("r{round}-w{writer}");
                tokio::spawn(write(maps.clone(), prefix, Arc::clone(&made)))
            })
            .collect();
        // Let some writes through, then pull the plug in the middle of the others.
        let enough = tokio::time::timeout(PATIENCE, made.acquire_many(ENOUGH));
        let enough = enough.await.expect("the writers get somewhere");
        drop(enough.expect("nobody closes it"));
        drop(server);
        for writer in writers {
            known.extend(writer.await.expect("a writer"));
        }
    }
    assert!(known.len() >= kills * ENOUGH as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_imported_elsewhere_is_the_same_state() {
    let (first, second) = (
        tempfile::tempdir().expect("a"),
        tempfile::tempdir().expect("b"),
    );
    let server = start(first.path());
    let maps: Api<ConfigMap> = Api::default_namespaced(client(first.path()).await);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("kept".to_owned());
    map.data = Some([("k".to_owned(), "v: \"quoted\"\nline".to_owned())].into());
    let made = maps
        .create(&PostParams::default(), &map)
        .await
        .expect("created");
    drop(server);
    let file = first.path().join("export.yaml");
    let run = |data: &Path, flag: &str| {
        Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["apiserver", "--port", "0", "--data"])
            .arg(data)
            .arg(flag)
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts")
    };
    assert!(
        run(first.path(), "--export")
            .wait()
            .expect("it ends")
            .success()
    );
    let server = Server(run(second.path(), "--import"));
    let maps: Api<ConfigMap> = Api::default_namespaced(client(second.path()).await);
    let found = maps.get("kept").await.expect("imported");
    assert_eq!(found.metadata.uid, made.metadata.uid);
    assert_eq!(
        found.metadata.creation_timestamp,
        made.metadata.creation_timestamp
    );
    assert_eq!(found.data, made.data);
    drop(server);
}
