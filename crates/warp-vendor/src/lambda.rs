//! Lambda Cloud 1.10 by its OpenAPI description.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

/// Name, description of its GPU, GPUs, cents an hour, regions.
const TYPES: &[(&str, &str, u32, u64, &[&str])] = &[
    (
        "gpu_1x_a10",
        "A10 (24 GB PCIe)",
        1,
        129,
        &["us-west-1", "us-east-1"],
    ),
    (
        "gpu_1x_h100_pcie",
        "H100 (80 GB PCIe)",
        1,
        329,
        &["us-west-3"],
    ),
    (
        "gpu_8x_h100_sxm5",
        "H100 (80 GB SXM5)",
        8,
        3192,
        &["us-east-1", "europe-central-1"],
    ),
    ("gpu_8x_a100", "A100 (40 GB SXM4)", 8, 1592, &["us-south-1"]),
    ("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 1, 69, &["us-west-1"]),
    ("cpu_4x_general", "N/A", 0, 20, &["us-west-1"]),
    ("gpu_1x_gh200", "GH200 (96 GB)", 1, 229, &[]),
];

const LAUNCH: &[Field] = &[
    must("region_name", Form::Text(64)),
    must("instance_type_name", Form::Text(64)),
    must("ssh_key_names", Form::Texts),
    may("file_system_names", Form::Texts),
    may(
        "file_system_mounts",
        Form::Objects(&[
            must("mount_point", Form::Text(256)),
            must("file_system_id", Form::Text(64)),
        ]),
    ),
    may("hostname", Form::Text(63)),
    may("name", Form::Text(64)),
    may(
        "image",
        Form::Object(&[may("id", Form::Text(64)), may("family", Form::Text(64))]),
    ),
    may("user_data", Form::Text(1 << 20)),
    may(
        "tags",
        Form::Objects(&[must("key", Form::Text(55)), must("value", Form::Text(128))]),
    ),
    may(
        "firewall_rulesets",
        Form::Objects(&[must("id", Form::Text(64))]),
    ),
];

const TERMINATE: &[Field] = &[must("instance_ids", Form::Texts)];

fn refused(status: u16, code: &str, message: &str) -> Answer {
    let error =
        json!({"code": code, "message": message, "suggestion": "Check it, then try again."});
    Answer::json(status, &json!({"error": error}))
}

fn invalid(world: &mut World, asked: &Asked, why: &str) -> Answer {
    world.complain(asked, why);
    refused(400, "global/invalid-parameters", why)
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    if world.is_too_fast("all", Duration::from_secs(1)) {
        return Answer::raw(429, Vec::new(), Vec::new()).with("retry-after", "1");
    }
    if asked.header("authorization") != format!("Bearer {}", world.script.key) {
        let words = format!(
            "API key {} was invalid, expired, or deleted.",
            asked.header("authorization")
        );
        return refused(401, "global/invalid-api-key", &words);
    }
    if world.script.no_balance {
        return refused(403, "global/account-inactive", "Your account is inactive.");
    }
    let parts = asked.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (asked.method.as_str(), parts.as_slice()) {
        ("GET", ["api", "v1", "instance-types"]) => {
            Answer::json(200, &json!({"data": types(world)}))
        }
        ("GET", ["api", "v1", "instances"]) => {
            let all = world.listed();
            let all: Vec<Value> = all
                .iter()
                .map(|(rented, phase)| instance(world, rented, *phase))
                .collect();
            Answer::json(200, &json!({"data": all}))
        }
        ("GET", ["api", "v1", "instances", id]) => {
            let all = world.shown();
            match all.iter().find(|(rented, _)| rented.id == *id) {
                Some((rented, phase)) => {
                    Answer::json(200, &json!({"data": instance(world, rented, *phase)}))
                }
                None => missing(),
            }
        }
        ("POST", ["api", "v1", "instance-operations", "launch"]) => launch(world, asked),
        ("POST", ["api", "v1", "instance-operations", "terminate"]) => terminate(world, asked),
        _ => {
            world.complain(asked, "there is no such operation");
            refused(
                404,
                "global/not-found",
                "The requested resource was not found.",
            )
        }
    }
}

fn missing() -> Answer {
    refused(
        404,
        "global/object-does-not-exist",
        "Specified instance does not exist.",
    )
}

fn types(world: &World) -> Value {
    let mut all = Map::new();
    for (name, _, _, _, regions) in TYPES {
        let regions: &[&str] = if world.script.sold_out { &[] } else { regions };
        let regions: Vec<Value> = regions.iter().map(|region| place(region)).collect();
        let sold = json!({
            "instance_type": kind(world, name),
            "regions_with_capacity_available": regions,
        });
        all.insert((*name).to_owned(), sold);
    }
    Value::Object(all)
}

fn place(region: &str) -> Value {
    json!({"name": region, "description": "Somewhere"})
}

fn kind(world: &World, name: &str) -> Value {
    let found = TYPES.iter().find(|(known, ..)| *known == name);
    let (name, gpu, gpus, cents, _) = found.copied().unwrap_or(TYPES[0]);
    json!({
        "name": name,
        "description": gpu,
        "gpu_description": gpu,
        "price_cents_per_hour": world.price(cents),
        "specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": gpus},
    })
}

fn instance(world: &World, rented: &Rented, phase: Phase) -> Value {
    let status = match phase {
        Phase::Booting => "booting",
        Phase::Running => "active",
        Phase::Preempted => "preempted",
        Phase::Ending => "terminating",
        Phase::Gone => "terminated",
    };
    let no = json!({"available": false, "reason_code": "vm-is-too-old", "reason_description": "-"});
    json!({
        "id": rented.id,
        "name": rented.name,
        "ip": "192.0.2.7",
        "private_ip": "10.0.0.7",
        "status": status,
        "ssh_key_names": ["warp"],
        "file_system_names": [],
        "region": place(&rented.region),
        "instance_type": kind(world, &rented.kind),
        "actions": {"migrate": no, "rebuild": no, "restart": no, "cold_reboot": no, "terminate": no},
    })
}

fn launch(world: &mut World, asked: &Asked) -> Answer {
    if world.is_too_fast("launch", Duration::from_secs(12)) {
        return Answer::raw(429, Vec::new(), Vec::new()).with("retry-after", "12");
    }
    let body = match asked.json() {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    if let Err(why) = check(&body, LAUNCH) {
        return invalid(world, asked, &why);
    }
    if body["ssh_key_names"].as_array().map(Vec::len) != Some(1) {
        return invalid(world, asked, "exactly one SSH key must be named");
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let host = text("hostname");
    let letters =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if !host.chars().all(letters) || host.starts_with('-') {
        return invalid(
            world,
            asked,
            "the hostname has other letters than a-z, 0-9 and -",
        );
    }
    if body["ssh_key_names"][0] != "warp" {
        return refused(
            400,
            "global/object-does-not-exist",
            "Specified SSH key does not exist.",
        );
    }
    let known = TYPES
        .iter()
        .find(|(name, ..)| *name == text("instance_type_name"));
    let Some((kind, _, gpus, ..)) = known else {
        return refused(
            400,
            "global/object-does-not-exist",
            "Specified instance type does not exist.",
        );
    };
    if world.is_full() {
        return refused(400, "global/quota-exceeded", "Quota exceeded.");
    }
    let region = text("region_name");
    let here = known.is_some_and(|(.., regions)| regions.contains(&region.as_str()));
    if world.script.sold_out || !here {
        let code = "instance-operations/launch/insufficient-capacity";
        return refused(400, code, "Not enough capacity to fulfill launch request.");
    }
    let mut rented = world.blank(&text("name"));
    rented.kind = (*kind).to_owned();
    rented.region = region;
    rented.gpus = *gpus;
    rented.said = body.clone();
    let id = rented.id.clone();
    world.machines.push(rented);
    Answer::json(200, &json!({"data": {"instance_ids": [id]}}))
}

fn terminate(world: &mut World, asked: &Asked) -> Answer {
    let body = asked
        .json()
        .and_then(|body| check(&body, TERMINATE).map(|()| body));
    let body = match body {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    let ids = body["instance_ids"].as_array().cloned().unwrap_or_default();
    let mut ended = Vec::new();
    for id in ids.iter().filter_map(Value::as_str) {
        if !world.end(id) {
            return missing();
        }
        let all = world.shown();
        let found = all.iter().find(|(rented, _)| rented.id == id);
        ended.extend(found.map(|(rented, phase)| instance(world, rented, *phase)));
    }
    Answer::json(200, &json!({"data": {"terminated_instances": ended}}))
}
