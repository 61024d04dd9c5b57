//! What requests for rented machines and the clouds they are rented from go through, and the accounts at the end:
//! every machine was bought once, is gone, and costs in the ledger what the cloud bills.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_cloud::fake::{Books, Rented, Script};
use warp_cloud::{Decimal, Mark};
use warp_local::node::{Simulated, host, rented};
use warp_testkit::fault::world::World;

use super::{delete, until_phase};

const HOME: &str = "warp-system";
const BOOKS: &str = "fake-cloud-fake";

/// When something was noticed decides what it cost, what it says of that, and how the books are written. The scenarios
/// add these up themselves.
pub(super) const MONEY: &[&str] = &[
    "/data",
    "/spent",
    "/cost",
    "/message",
    "/idleSince",
    "/spentToday",
    // Which process of the operator it was.
    "/caller",
    "/spentThisMonth",
];

fn provider(spec: &Value) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider",
        "metadata": {"name": "fake"}, "spec": spec,
    })
}

pub(super) fn request(name: &str, spec: &Value) -> Value {
    let mut it = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"gpuType": "H100", "maxPrice": 3.50, "maxLifetime": "24h"},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        it["spec"][field] = value.clone();
    }
    it
}

fn books(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), HOME)
}

/// A cloud with this script, whose machines join as nodes.
pub(super) async fn open(world: &World, script: &Script) -> Result<Value> {
    open_as(world, script, &json!({"type": "fake"})).await
}

/// A cloud with this script that is described so.
pub(super) async fn open_as(world: &World, script: &Script, spec: &Value) -> Result<Value> {
    let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}});
    world.create(home).await?;
    // Its uid is in every machine's name: a change makes it known to whoever compares two runs.
    let system =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
    let seen = json!({"metadata": {"annotations": {"seen": "true"}}});
    world.patch(&system, seen).await?;
    let object: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": BOOKS, "labels": {"gpu.warp.dev/fake-cloud": "fake"}},
        "data": {"machines": "[]", "script": serde_json::to_string(script)?},
    }))?;
    books(world).create(&PostParams::default(), &object).await?;
    let options = host::Options {
        lease_every: Duration::from_mins(1),
        writes: 64,
        chatty: false,
    };
    let runtime = Arc::new(Simulated::default());
    // Ends with the world's runtime.
    let stop = CancellationToken::new();
    tokio::spawn(rented::run(
        world.client.clone(),
        world.clock.clone(),
        runtime,
        options,
        stop,
    ));
    let it = provider(spec);
    world.create(it.clone()).await?;
    until_reason(world, &it, "OffersKnown").await?;
    Ok(it)
}

async fn until_reason(world: &World, it: &Value, reason: &str) -> Result<()> {
    world
        .until(it, reason, |object| {
            object.is_some_and(|object| object["status"]["conditions"][0]["reason"] == reason)
        })
        .await
}

pub(super) async fn read(world: &World) -> Result<Books> {
    let object = books(world).get(BOOKS).await?;
    let data = object.data.context("books without pages")?;
    Ok(Books {
        machines: serde_json::from_str(&data["machines"])?,
        script: serde_json::from_str(&data["script"])?,
    })
}

/// The cloud changes something itself. It is asked again when somebody else wrote in between.
pub(super) async fn cloud_does(world: &World, change: impl Fn(&mut Books)) -> Result<()> {
    loop {
        let object = books(world).get(BOOKS).await?;
        let mut changed = read(world).await?;
        change(&mut changed);
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "data": {
                "machines": serde_json::to_string(&changed.machines)?,
                "script": serde_json::to_string(&changed.script)?,
            },
        });
        let params = PatchParams::default();
        match books(world)
            .patch(BOOKS, &params, &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => {
                other?;
                return Ok(());
            }
        }
    }
}

/// What is in a ledger, by machine: that of a tenant, or of what is no tenant's.
async fn ledger(world: &World, whose: &str) -> Result<BTreeMap<String, Value>> {
    let month = world.clock.now().strftime("%Y-%m").to_string();
    let name = format!("costs-{month}{whose}");
    let all = books(world).list(&ListParams::default()).await?;
    // Those of containers have parts.
    let of_it = all.into_iter().filter(|one| {
        let found = one.name_any();
        found == name || found.starts_with(&format!("{name}."))
    });
    let entries = of_it.flat_map(|one| one.data.unwrap_or_default());
    let each = entries.map(|(name, text)| Ok((name, serde_json::from_str(&text)?)));
    each.collect()
}

/// Every machine was bought once, is gone, and costs in the ledger what the cloud bills; together at most `cap`,
/// what was billed after its end was asked for left out.
pub(super) async fn accounts_are_right(world: &World, cap: Option<Decimal>) -> Result<()> {
    let ledger = machines_end(world, "").await?;
    let (books, now) = (read(world).await?, world.clock.now());
    let mut total = Decimal::ZERO;
    for machine in &books.machines {
        let entry = ledger.get(&machine.name).context("no entry")?;
        let cost: Decimal = entry["cost"].as_str().context("no cost")?.parse()?;
        let billed = machine.billed(now);
        ensure!(
            cost == billed,
            "{}: {cost} in the ledger, {billed} billed",
            machine.name
        );
        total += until_its_end(machine, entry)?;
    }
    if let Some(cap) = cap {
        ensure!(total <= cap, "{total} spent of {cap}");
    }
    Ok(())
}

/// Every machine was bought once, is gone, and is in the ledger.
pub(super) async fn machines_end(world: &World, whose: &str) -> Result<BTreeMap<String, Value>> {
    // What ends now is billed until the moment it is gone.
    world.pass(Duration::from_mins(5)).await;
    let (books, now) = (read(world).await?, world.clock.now());
    let mut bought: BTreeMap<&str, u32> = BTreeMap::new();
    for machine in &books.machines {
        *bought.entry(&machine.name).or_default() += 1;
    }
    let twice: Vec<_> = bought.iter().filter(|(_, count)| **count > 1).collect();
    ensure!(twice.is_empty(), "bought twice: {twice:?}");
    ensure!(books.running(now) == 0, "left behind: {:?}", books.machines);
    let ledger = ledger(world, whose).await?;
    ensure!(
        ledger.len() == books.machines.len(),
        "{} machines and {} entries",
        books.machines.len(),
        ledger.len()
    );
    Ok(ledger)
}

/// What a machine cost until the cloud was to end it.
fn until_its_end(machine: &Rented, entry: &Value) -> Result<Decimal> {
    let Some(since) = entry["endingSince"].as_str() else {
        return Ok(machine.billed(machine.ended.context("not over")?));
    };
    Ok(machine.billed(since.parse()?))
}

pub(super) async fn is_rented_joins_and_is_deleted(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn is_deleted_before_the_cloud_shows_it(world: &World) -> Result<()> {
    let script = Script {
        hidden_seconds: 55,
        ..Script::default()
    };
    open(world, &script).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    world
        .until(&it, "bought", |object| {
            object.is_some_and(|object| object["status"]["attempts"][0]["instanceId"].is_string())
        })
        .await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn is_given_back_when_idle(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({"idleTimeout": "10m"}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ended").await?;
    accounts_are_right(world, None).await
}

pub(super) async fn ends_within_its_money(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({"maxTotalPrice": "2.00"}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ended").await?;
    accounts_are_right(world, Some(Decimal::TWO)).await
}

pub(super) async fn falls_back_to_another_region(world: &World) -> Result<()> {
    let script = Script {
        refused: vec!["h100-80gbx1@us-east-1".to_owned()],
        ..Script::default()
    };
    open(world, &script).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let books = read(world).await?;
    ensure!(books.machines[0].region == "us-west-1", "{books:?}");
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn replaces_a_machine_that_is_taken_back(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({"spotInstance": true, "maxSpotPrice": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let now = world.clock.now();
    cloud_does(world, |books| {
        for machine in &mut books.machines {
            machine.preempted = true;
            machine.ended = Some(now);
        }
    })
    .await?;
    world
        .until(&it, "ready again", |object| {
            object.is_some_and(|object| {
                object["status"]["phase"] == "Ready" && object["status"]["attemptCount"] == 2
            })
        })
        .await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

/// The cloud says two minutes before that it takes a machine back: another takes its place in the meantime.
pub(super) async fn is_replaced_before_it_is_taken_back(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({"spotInstance": true, "maxSpotPrice": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    cloud_does(world, |books| {
        books.script.interrupt = books
            .machines
            .iter()
            .take(1)
            .map(|it| it.name.clone())
            .collect();
    })
    .await?;
    world
        .until(&it, "ready again", |object| {
            object.is_some_and(|object| {
                object["status"]["phase"] == "Ready" && object["status"]["attemptCount"] == 2
            })
        })
        .await?;
    let books = read(world).await?;
    ensure!(books.machines.len() == 2, "{books:?}");
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn waits_for_its_price(world: &World) -> Result<()> {
    let script = Script {
        price_factor: Decimal::TWO,
        ..Script::default()
    };
    open(world, &script).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_reason(world, &it, "PriceTooLow").await?;
    cloud_does(world, |books| books.script.price_factor = Decimal::ONE).await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

pub(super) async fn is_held_while_machines_exist(world: &World) -> Result<()> {
    let cloud = open(world, &Script::default()).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let api = world.api_of(&cloud)?;
    api.delete("fake", &DeleteParams::default()).await?;
    until_reason(world, &cloud, "MachinesExist").await?;
    delete(world, &it).await?;
    world
        .until(&cloud, "gone", |object| object.is_none())
        .await?;
    accounts_are_right(world, None).await
}

pub(super) async fn ends_a_machine_of_nobody(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let system = namespaces.get("kube-system").await?;
    let mark = Mark::of_cluster(&system.metadata.uid.context("a uid")?);
    let now = world.clock.now();
    let machine = |name: String, id: &str| Rented {
        id: id.to_owned(),
        name,
        owner: String::new(),
        gpu: "L4".to_owned(),
        gpus: 1,
        region: "us-east-1".to_owned(),
        instance_type: "l4x1".to_owned(),
        price: Decimal::ONE,
        spot: false,
        launched: now,
        boots: now,
        ended: None,
        preempted: false,
        notice: None,
        container: None,
    };
    let ours = warp_cloud::machine_name(&mark, "nobody", 1);
    cloud_does(world, |books| {
        books.machines.push(machine(ours.clone(), "m-ours"));
        books
            .machines
            .push(machine("somebody-elses".to_owned(), "m-theirs"));
    })
    .await?;
    world.pass(Duration::from_mins(15)).await;
    let books = read(world).await?;
    for machine in &books.machines {
        let over = machine.ended.is_some();
        ensure!(over == (machine.id == "m-ours"), "{machine:?}");
        // The node object of a machine nobody rented is nobody's to take away but the test's.
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine.name}});
        delete(world, &node).await?;
    }
    Ok(())
}

pub(super) async fn is_told_that_its_credentials_are_refused(world: &World) -> Result<()> {
    let cloud = open(world, &Script::default()).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    cloud_does(world, |books| books.script.credentials_refused = true).await?;
    until_reason(world, &cloud, "BadCredentials").await?;
    let api = world.api_of(&it)?;
    api.delete("r", &DeleteParams::default()).await?;
    until_reason(world, &it, "TerminationStuck").await?;
    cloud_does(world, |books| books.script.credentials_refused = false).await?;
    world.until(&it, "gone", |object| object.is_none()).await?;
    accounts_are_right(world, None).await
}

/// The cloud shows what it has sold a minute later.
pub(super) async fn is_shown_a_minute_after_it_was_bought(world: &World) -> Result<()> {
    let script = Script {
        hidden_seconds: 60,
        ..Script::default()
    };
    open(world, &script).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}

/// The cheapest is billed at more than was agreed: it is given back and another is taken.
pub(super) async fn is_billed_more_than_was_agreed(world: &World) -> Result<()> {
    let script = Script {
        misbilled: vec!["h100-80gbx1@us-east-1".to_owned()],
        billed_factor: Decimal::new(15, 1),
        ..Script::default()
    };
    open(world, &script).await?;
    let it = request("r", &json!({"maxTotalPrice": 3}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let books = read(world).await?;
    let places: Vec<&str> = books.machines.iter().map(|one| &*one.region).collect();
    ensure!(places == ["us-east-1", "us-west-1"], "{books:?}");
    delete(world, &it).await?;
    accounts_are_right(world, Some(Decimal::from(3))).await
}

/// Three are wanted at once and the account may have two.
pub(super) async fn waits_for_room_in_the_account(world: &World) -> Result<()> {
    let script = Script {
        machine_limit: Some(2),
        ..Script::default()
    };
    open(world, &script).await?;
    let all = ["a", "b", "c"].map(|name| request(name, &json!({})));
    for it in &all {
        world.create(it.clone()).await?;
    }
    for it in &all[..2] {
        until_phase(world, it, "Ready").await?;
    }
    until_reason(world, &all[2], "Retrying").await?;
    for it in &all[..2] {
        delete(world, it).await?;
    }
    until_phase(world, &all[2], "Ready").await?;
    delete(world, &all[2]).await?;
    accounts_are_right(world, None).await
}

/// The cloud says well when it is told to end a machine, and does not.
pub(super) async fn is_told_until_the_machine_is_gone(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    cloud_does(world, |books| books.script.forgets_terminate = true).await?;
    let api = world.api_of(&it)?;
    api.delete("r", &DeleteParams::default()).await?;
    world.pass(Duration::from_mins(10)).await;
    ensure!(
        api.get_opt("r").await?.is_some(),
        "it went before its machine"
    );
    cloud_does(world, |books| books.script.forgets_terminate = false).await?;
    world.until(&it, "gone", |object| object.is_none()).await?;
    accounts_are_right(world, None).await
}

/// A machine on demand is gone without a word: another takes its place.
pub(super) async fn loses_its_machine_and_rents_another(world: &World) -> Result<()> {
    open(world, &Script::default()).await?;
    let it = request("r", &json!({}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let now = world.clock.now();
    cloud_does(world, |books| {
        for machine in books.machines.iter_mut().filter(|one| one.ended.is_none()) {
            machine.ended = Some(now);
        }
    })
    .await?;
    world
        .until(&it, "ready again", |object| {
            object.is_some_and(|object| {
                object["status"]["phase"] == "Ready" && object["status"]["attemptCount"] == 2
            })
        })
        .await?;
    delete(world, &it).await?;
    accounts_are_right(world, None).await
}
