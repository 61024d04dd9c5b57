//! Google Compute Engine v1 by its discovery document, its login and its billing catalogue: "sold out" comes from the
//! operation after the launch was accepted, and a request id that was used is the same launch.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

const PROJECT: &str = "project-of-the-tests";

/// Zone, type, cores, MiB, accelerator, how many.
const TYPES: &[(&str, &str, u32, u32, &str, u32)] = &[
    ("us-central1-a", "g2-standard-4", 4, 16_384, "nvidia-l4", 1),
    ("us-central1-b", "g2-standard-4", 4, 16_384, "nvidia-l4", 1),
    (
        "us-central1-a",
        "a2-highgpu-1g",
        12,
        87_040,
        "nvidia-tesla-a100",
        1,
    ),
    (
        "us-central1-a",
        "a3-highgpu-8g",
        208,
        1_916_928,
        "nvidia-h100-80gb",
        8,
    ),
    (
        "us-central1-a",
        "n1-standard-4",
        4,
        15_360,
        "nvidia-voodoo",
        1,
    ),
];

/// What a row begins with, billionths of a dollar on demand and spot.
const PARTS: &[(&str, u64, u64)] = &[
    ("G2 Instance Core", 24_990_000, 9_990_000),
    ("G2 Instance Ram", 2_930_000, 1_170_000),
    ("Nvidia L4 GPU", 560_040_000, 223_800_000),
    ("A2 Instance Core", 31_611_000, 12_640_000),
    ("A2 Instance Ram", 4_237_000, 1_690_000),
    ("Nvidia Tesla A100 GPU", 2_933_908_000, 1_173_000_000),
    ("A3 Instance Core", 29_530_000, 0),
];

const DISK: &[Field] = &[
    must("sourceImage", Form::Text(512)),
    may("diskSizeGb", Form::Text(8)),
];
const DISKS: &[Field] = &[
    must("boot", Form::Flag),
    must("autoDelete", Form::Flag),
    must("initializeParams", Form::Object(DISK)),
];
const NAT: &[Field] = &[
    must("type", Form::OneOf(&["ONE_TO_ONE_NAT"])),
    may("name", Form::Text(64)),
];
const CARDS: &[Field] = &[
    may("network", Form::Text(512)),
    may("subnetwork", Form::Text(512)),
    may("accessConfigs", Form::Objects(NAT)),
];
const SCHEDULING: &[Field] = &[
    may("onHostMaintenance", Form::OneOf(&["MIGRATE", "TERMINATE"])),
    may("automaticRestart", Form::Flag),
    may("provisioningModel", Form::OneOf(&["SPOT", "STANDARD"])),
    may(
        "instanceTerminationAction",
        Form::OneOf(&["DELETE", "STOP"]),
    ),
    may(
        "maxRunDuration",
        Form::Object(&[must("seconds", Form::Text(16))]),
    ),
];
const ITEMS: &[Field] = &[
    must("key", Form::Text(128)),
    must("value", Form::Text(1 << 18)),
];
const CREATE: &[Field] = &[
    must("name", Form::Text(63)),
    must("machineType", Form::Text(256)),
    must("disks", Form::Objects(DISKS)),
    must("networkInterfaces", Form::Objects(CARDS)),
    may("scheduling", Form::Object(SCHEDULING)),
    may("labels", Form::Map),
    may(
        "metadata",
        Form::Object(&[must("items", Form::Objects(ITEMS))]),
    ),
];

fn refused(status: u16, reason: &str, message: &str) -> Answer {
    let errors = json!([{"domain": "global", "reason": reason, "message": message}]);
    Answer::json(
        status,
        &json!({"error": {"code": status, "message": message, "errors": errors}}),
    )
}

fn invalid(world: &mut World, asked: &Asked, why: &str) -> Answer {
    world.complain(asked, why);
    refused(400, "invalid", why)
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    if asked.path == "/token" {
        return log_in(world, asked);
    }
    if asked.header("authorization") != format!("Bearer {}", world.script.key) {
        return refused(401, "authError", "Invalid Credentials");
    }
    let parts = asked.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (asked.method.as_str(), parts.as_slice()) {
        ("GET", ["v1", "services", "6F81-5844-456A", "skus"]) => skus(world),
        (
            "GET",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "aggregated",
                "machineTypes",
            ],
        ) => types(),
        (
            "GET",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "aggregated",
                "instances",
            ],
        ) => list(world, asked),
        (
            "POST",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "zones",
                zone,
                "instances",
            ],
        ) => insert(world, asked, zone),
        (
            "POST",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "zones",
                _,
                "operations",
                name,
                "wait",
            ],
        ) => {
            let (status, error) = if world.script.sold_out {
                ("DONE", sold_out())
            } else {
                ("DONE", Value::Null)
            };
            let mut operation =
                json!({"kind": "compute#operation", "name": name, "status": status});
            if !error.is_null() {
                operation["error"] = error;
            }
            Answer::json(200, &operation)
        }
        (
            "GET",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "zones",
                zone,
                "instances",
                name,
            ],
        ) => match found(world, zone, name) {
            Some((rented, phase)) => Answer::json(200, &instance(&rented, phase)),
            None => missing(),
        },
        (
            "DELETE",
            [
                "compute",
                "v1",
                "projects",
                PROJECT,
                "zones",
                zone,
                "instances",
                name,
            ],
        ) => match found(world, zone, name) {
            Some((rented, _)) => {
                world.end(&rented.id);
                Answer::json(
                    200,
                    &json!({"kind": "compute#operation", "name": "op-delete", "status": "RUNNING"}),
                )
            }
            None => missing(),
        },
        _ => {
            world.complain(asked, "there is no such method");
            refused(404, "notFound", "there is no such method")
        }
    }
}

fn missing() -> Answer {
    refused(404, "notFound", "The resource was not found")
}

fn sold_out() -> Value {
    let words = "The zone does not have enough resources available to fulfill the request.";
    json!({"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": words}]})
}

fn found(world: &World, zone: &str, name: &str) -> Option<(Rented, Phase)> {
    let all = world.listed().into_iter();
    let mut all = all.filter(|(rented, _)| rented.name == name && rented.region == zone);
    all.next()
}

/// The claim's form and, where a test says which key signs, its words; the signature is the login's own test.
fn log_in(world: &mut World, asked: &Asked) -> Answer {
    let form = asked.form();
    let claim = form.get("assertion").cloned().unwrap_or_default();
    let parts: Vec<&str> = claim.split('.').collect();
    let read = |part: &str| -> Option<Value> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
    };
    let good = form.get("grant_type").map(String::as_str)
        == Some("urn:ietf:params:oauth:grant-type:jwt-bearer")
        && parts.len() == 3
        && read(parts[0]).is_some_and(|head| head == json!({"alg": "RS256", "typ": "JWT"}))
        && read(parts[1]).is_some_and(|claims| {
            claims["aud"] == "https://oauth2.googleapis.com/token"
                && claims["exp"].as_i64() == claims["iat"].as_i64().map(|at| at + 3600)
        });
    if !good {
        world.complain(asked, "not the form of a login");
        return Answer::json(
            400,
            &json!({"error": "invalid_grant", "error_description": "Invalid JWT"}),
        );
    }
    let token = world.script.key.clone();
    Answer::json(
        200,
        &json!({"access_token": token, "expires_in": 3599, "token_type": "Bearer"}),
    )
}

fn skus(world: &World) -> Answer {
    let mut rows = Vec::new();
    for (part, price, spot) in PARTS {
        for (kind, words, price) in [
            ("OnDemand", "", price),
            ("Preemptible", "Spot Preemptible ", spot),
        ] {
            let price = world.price(*price);
            let unit = json!({"currencyCode": "USD", "units": (price / 1_000_000_000).to_string(), "nanos": price % 1_000_000_000});
            rows.push(json!({
                "description": format!("{words}{part} running in Iowa"),
                "category": {"resourceFamily": "Compute", "usageType": kind},
                "serviceRegions": ["us-central1"],
                "pricingInfo": [{"pricingExpression": {"tieredRates": [{"startUsageAmount": 0, "unitPrice": unit}]}}],
            }));
        }
    }
    Answer::json(200, &json!({"skus": rows, "nextPageToken": ""}))
}

fn types() -> Answer {
    let mut items: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (zone, name, cores, memory, gpu, count) in TYPES {
        let accelerator = json!({"guestAcceleratorType": gpu, "guestAcceleratorCount": count});
        let kind = json!({"name": name, "guestCpus": cores, "memoryMb": memory, "accelerators": [accelerator]});
        items.entry(format!("zones/{zone}")).or_default().push(kind);
    }
    let items: BTreeMap<String, Value> = items
        .into_iter()
        .map(|(zone, types)| (zone, json!({"machineTypes": types})))
        .collect();
    Answer::json(
        200,
        &json!({"kind": "compute#machineTypeAggregatedList", "items": items}),
    )
}

fn list(world: &mut World, asked: &Asked) -> Answer {
    let filter = asked.query().get("filter").cloned().unwrap_or_default();
    let Some(prefix) = filter
        .strip_prefix("name = ")
        .and_then(|rest| rest.strip_suffix('*'))
    else {
        return invalid(world, asked, "this judge knows no such filter");
    };
    let mut items: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (rented, phase) in world.listed() {
        if rented.name.starts_with(prefix) {
            let zone = format!("zones/{}", rented.region);
            items
                .entry(zone)
                .or_default()
                .push(instance(&rented, phase));
        }
    }
    let mut items: BTreeMap<String, Value> = items
        .into_iter()
        .map(|(zone, all)| (zone, json!({"instances": all})))
        .collect();
    items.insert(
        "zones/us-east1-b".to_owned(),
        json!({"warning": {"code": "NO_RESULTS_ON_PAGE"}}),
    );
    Answer::json(
        200,
        &json!({"kind": "compute#instanceAggregatedList", "items": items}),
    )
}

fn insert(world: &mut World, asked: &Asked, zone: &str) -> Answer {
    let body = match asked
        .json()
        .and_then(|body| check(&body, CREATE).map(|()| body))
    {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    let token = asked.query().get("requestId").cloned().unwrap_or_default();
    let shape: Vec<usize> = token.split('-').map(str::len).collect();
    if shape != [8, 4, 4, 4, 12] {
        return invalid(world, asked, "requestId is no UUID");
    }
    let scheduling = &body["scheduling"];
    let timed = scheduling.get("maxRunDuration").is_some();
    if timed && scheduling.get("instanceTerminationAction").is_none() {
        return invalid(
            world,
            asked,
            "maxRunDuration needs instanceTerminationAction",
        );
    }
    let labels = body["labels"].as_object().into_iter().flatten();
    for (_, value) in labels {
        let text = value.as_str().unwrap_or_default();
        let good = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-' | '_');
        if text.len() > 63 || !text.chars().all(good) {
            return invalid(
                world,
                asked,
                "a label has other letters than a-z, 0-9, - and _",
            );
        }
    }
    let accepted = json!({"kind": "compute#operation", "name": "op-insert", "status": "RUNNING"});
    if world.machines.iter().any(|rented| rented.token == token) {
        return Answer::json(200, &accepted);
    }
    let name = body["name"].as_str().unwrap_or_default();
    if world
        .machines
        .iter()
        .any(|rented| rented.name == name && rented.region == zone && !rented.was_ended())
    {
        return refused(409, "alreadyExists", "The resource already exists");
    }
    let kind = body["machineType"].as_str().unwrap_or_default();
    let kind = kind.rsplit('/').next().unwrap_or_default();
    let Some((.., count)) = TYPES
        .iter()
        .find(|(at, known, ..)| *at == zone && *known == kind)
    else {
        return refused(400, "invalid", "there is no such machine type");
    };
    if world.script.no_balance {
        return refused(
            403,
            "billingNotEnabled",
            "Billing is disabled for this project.",
        );
    }
    if world.is_full() {
        return refused(403, "quotaExceeded", "Quota 'GPUS_ALL_REGIONS' exceeded.");
    }
    if world.script.sold_out {
        return Answer::json(200, &accepted);
    }
    let mut rented = world.blank(name);
    rented.kind = kind.to_owned();
    rented.region = zone.to_owned();
    rented.gpus = *count;
    rented.spot = scheduling["provisioningModel"] == "SPOT";
    rented.token = token;
    rented.said = body.clone();
    world.machines.push(rented);
    Answer::json(200, &accepted)
}

fn instance(rented: &Rented, phase: Phase) -> Value {
    let status = match phase {
        Phase::Booting => "PROVISIONING",
        Phase::Running => "RUNNING",
        Phase::Preempted => "TERMINATED",
        Phase::Ending | Phase::Gone => "STOPPING",
    };
    let base = format!(
        "https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{}",
        rented.region
    );
    let model = if rented.spot { "SPOT" } else { "STANDARD" };
    json!({
        "kind": "compute#instance", "name": rented.name, "zone": base, "status": status,
        "machineType": format!("{base}/machineTypes/{}", rented.kind),
        "creationTimestamp": rented.created.to_string(),
        "scheduling": {"provisioningModel": model},
        "networkInterfaces": [{"networkIP": "10.0.0.11", "accessConfigs": [{"natIP": "192.0.2.11"}]}],
    })
}
