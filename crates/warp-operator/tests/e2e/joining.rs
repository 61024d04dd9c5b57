//! A machine rented from a cloud becomes a node of a real control plane with what it was given to run at its first
//! start. The scenario plays the machine: it reads its user data, asks for its certificate with the token in it, and
//! registers. Another name and a second certificate are not to be had with that token, and it is gone when the machine
//! has joined.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Event, Node, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use warp_testkit::{Cluster, Engine, until as until_some, wait_for};
use warp_vendor::{Brand, KEY, Vendor};

use super::Used;
use super::clouds::{clouds, gone, requests, until};
use super::role;
use super::world::{DEADLINE, SYSTEM, World, condition, reason};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Where the API server is, and who vouches for it.
fn kubeconfig(world: &World) -> Result<Kubeconfig> {
    Ok(Kubeconfig::read_from(world.cluster.kubeconfig())?)
}

fn server(world: &World) -> Result<String> {
    let read = kubeconfig(world)?;
    let cluster = read
        .clusters
        .first()
        .and_then(|known| known.cluster.as_ref());
    cluster
        .and_then(|cluster| cluster.server.clone())
        .context("no server")
}

/// A client that shows what `user` says.
async fn client(world: &World, user: &Value) -> Result<Client> {
    let mut read = serde_json::to_value(kubeconfig(world)?)?;
    read["users"][0]["user"] = user.clone();
    let read: Kubeconfig = serde_json::from_value(read)?;
    let options = KubeConfigOptions::default();
    Ok(Client::try_from(
        Config::from_custom_kubeconfig(read, &options).await?,
    )?)
}

/// What a machine was given: its token.
fn token(said: &Value) -> Result<String> {
    let text = said["user_data"].as_str().context("no user data")?;
    let read: Value = serde_saphyr::from_str(text)?;
    let files = read["write_files"].as_array().context("no files")?;
    let file = files
        .iter()
        .find(|file| file["path"] == "/etc/warp/join.yaml");
    let join = file
        .and_then(|file| file["content"].as_str())
        .context("no join.yaml")?;
    let join: Value = serde_saphyr::from_str(join)?;
    let token = join["discovery"]["tlsBootstrapToken"].as_str();
    Ok(token.context("no token")?.to_owned())
}

/// Asks for a node's certificate; the key it is for.
async fn ask(client: &Client, request: &str, node: &str) -> Result<KeyPair> {
    let key = KeyPair::generate()?;
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = rcgen::DistinguishedName::new();
    let name = &mut wanted.distinguished_name;
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{node}"));
    let pem = wanted.serialize_request(&key)?.pem()?;
    let object: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": request},
        "spec": {
            "signerName": SIGNER, "request": STANDARD.encode(pem),
            "usages": ["digital signature", "client auth"],
        },
    }))?;
    let all: Api<CertificateSigningRequest> = Api::all(client.clone());
    all.create(&PostParams::default(), &object).await?;
    Ok(key)
}

/// The certificate of a request, once it is signed.
async fn certificate(world: &World, request: &str) -> Result<String> {
    let all: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let signed = wait_for(&all, request, "signed", DEADLINE, |request| {
        let status = request.and_then(|request| request.status.as_ref());
        status.is_some_and(|status| status.certificate.is_some())
    })
    .await?;
    let signed = signed.and_then(|signed| signed.status?.certificate);
    Ok(String::from_utf8(signed.context("no certificate")?.0)?)
}

async fn is_left_alone(world: &World, namespace: &str, request: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), namespace);
    until_some("it is said that it is left alone", DEADLINE, || async {
        let all = events.list(&ListParams::default()).await?;
        let said = all.items.iter().any(|event| {
            let words = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("CertificateIgnored") && words.contains(request)
        });
        Ok(said.then_some(()))
    })
    .await?;
    let all: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let found = all.get(request).await?;
    let decided = found
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    ensure!(decided.is_empty(), "{request}: {decided:?}");
    Ok(())
}

/// Rents a machine; its name, once it runs.
async fn rented(world: &World, vendor: &Vendor, address: &str, namespace: &str) -> Result<String> {
    let post = PostParams::default();
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "judged"}, "stringData": {"apiKey": KEY, "endpoint": address},
    }))?;
    secrets.create(&post, &secret).await?;
    let provider: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "judged"},
        "spec": {
            "type": "lambda", "credentials": {"secretName": "judged"}, "settings": {"sshKey": "warp"},
            "bootstrap": {"type": "kubeadm", "server": server(world)?},
        },
    }))?;
    clouds(world).create(&post, &provider).await?;
    until(&clouds(world), "judged", "open", |cloud| {
        condition(cloud, "Ready", "status") == "True"
    })
    .await?;
    let api = requests(world, namespace);
    let request = |name: &str, more: Value| -> Result<DynamicObject> {
        let mut object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest", "metadata": {"name": name},
            "spec": {"provider": "judged", "gpuType": "A10", "maxPrice": "1.50", "maxLifetime": "2h"},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        Ok(serde_json::from_value(object)?)
    };
    // What would run as root on a node of this cluster is not for everybody to say.
    api.create(&post, &request("sly", json!({"userData": "#!/bin/sh"}))?)
        .await?;
    until(&api, "sly", "refused", |request| {
        reason(request) == "NotAllowed"
    })
    .await?;
    api.delete("sly", &DeleteParams::default()).await?;
    ensure!(vendor.machines().is_empty(), "bought what is not allowed");
    api.create(&post, &request("a10", json!({}))?).await?;
    let joining = until(&api, "a10", "joining", |request| {
        request.data["status"]["phase"] == "Joining"
    })
    .await?;
    let name = joining.data["status"]["nodeName"].as_str();
    Ok(name.context("no node name")?.to_owned())
}

/// Registers as the machine's kubelet does, and says that its GPUs work.
async fn register(kubelet: &Client, machine: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(kubelet.clone());
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": machine, "labels": {"nvidia.com/gpu.product": "A10", "gpu.warp.dev/provider": "lambda"}},
        "spec": {
            "providerID": format!("warp://lambda/{machine}"),
            "taints": [{"key": "gpu.warp.dev/starting", "effect": "NoSchedule"}],
        },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let now = jiff::Timestamp::now();
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }]}});
    let params = PatchParams::default();
    nodes
        .patch_status(machine, &params, &Patch::Strategic(ready))
        .await?;
    let own = json!({"spec": {"taints": null}});
    let taken = nodes.patch(machine, &params, &Patch::Merge(own)).await;
    ensure!(taken.is_err(), "a node may not take its own taint away");
    let passed = json!({"metadata": {"annotations": {"gpu.warp.dev/gpu-test": "passed"}}});
    nodes.patch(machine, &params, &Patch::Merge(passed)).await?;
    Ok(())
}

pub(super) async fn a_machine_becomes_a_node() -> Result<Used> {
    let cluster = Cluster::on(Engine::Real).audited().start().await?;
    let world = World::install(cluster, &[]).await?;
    let manifest = warp_testkit::repository().join("deploy/joining/role.yaml");
    let manifest = std::fs::read_to_string(manifest)?;
    let kubectl = world.cluster.kubectl();
    kubectl.run_with(&["apply", "-f", "-"], &manifest).await?;
    let operator = world.operator(&["--leader-elect", "--log-format=json"])?;
    let scene = world.scene("joins").await?;
    let vendor = Vendor::new(Brand::Lambda);
    let address = vendor.serve().await?;
    let machine = rented(&world, &vendor, &address.address(), &scene.namespace)
        .await
        .with_context(|| operator.log_tail())?;
    let said = vendor.machines().first().map(|rented| rented.said.clone());
    let token = token(&said.context("no machine")?)?;
    let bearer = client(&world, &json!({"token": token})).await?;

    ask(&bearer, "other-name", "another").await?;
    is_left_alone(&world, &scene.namespace, "other-name")
        .await
        .with_context(|| operator.log_tail())?;
    let key = ask(&bearer, "own-name", &machine).await?;
    let signed = certificate(&world, "own-name")
        .await
        .with_context(|| operator.log_tail())?;
    ask(&bearer, "again", &machine).await?;
    is_left_alone(&world, &scene.namespace, "again").await?;

    let kubelet = client(
        &world,
        &json!({
            "client-certificate-data": STANDARD.encode(signed),
            "client-key-data": STANDARD.encode(key.serialize_pem()),
        }),
    )
    .await?;
    register(&kubelet, &machine).await?;
    let api = requests(&world, &scene.namespace);
    let ready = until(&api, "a10", "ready", |request| {
        request.data["status"]["phase"] == "Ready"
    })
    .await
    .with_context(|| operator.log_tail())?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let taints = nodes.get(&machine).await?.spec.and_then(|spec| spec.taints);
    let starting = taints
        .iter()
        .flatten()
        .any(|taint| taint.key == "gpu.warp.dev/starting");
    ensure!(!starting, "{taints:?}");

    // The token is gone, and with it what could be asked for.
    let id = token.split('.').next().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "kube-system");
    let name = format!("bootstrap-token-{id}");
    wait_for(&secrets, &name, "gone", DEADLINE, |secret| secret.is_none()).await?;
    until_some("the token is not taken any more", DEADLINE, || async {
        let late = ask(&bearer, "too-late", &machine).await;
        Ok(late.is_err().then_some(()))
    })
    .await?;
    let secret = token.split('.').nth(1).context("no secret half")?;
    ensure!(
        !ready.data.to_string().contains(secret),
        "the token is in a status"
    );
    ensure!(
        !operator.log_tail().contains(secret),
        "the token is in the log"
    );

    api.delete("a10", &DeleteParams::default()).await?;
    gone(&api, "a10").await?;
    ensure!(vendor.machines().iter().all(warp_vendor::Rented::was_ended));
    ensure!(vendor.complaints().is_empty(), "{:?}", vendor.complaints());
    clouds(&world)
        .delete("judged", &DeleteParams::default())
        .await?;
    gone(&clouds(&world), "judged").await?;
    let used = role::used(&world).await?;
    // Whether a signer may be used is asked inside the API server: no request shows it.
    let granted = role::granted(&manifest)?;
    let unused: Vec<_> = granted
        .difference(&used)
        .filter(|action| action.resource != "signers")
        .collect();
    ensure!(unused.is_empty(), "granted and never used: {unused:#?}");
    // These rights are not the shipped role's.
    Ok(Used::new())
}
