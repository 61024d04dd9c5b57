//! Paperspace by notes on its API: it publishes no description file, so this judge knows what the notes say and no more.

use serde_json::{Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

const TYPES: &[&str] = &[
    "A4000", "A4000x2", "A4000x4", "A5000", "A6000", "V100", "V100-32G", "A100-80G", "H100",
    "H100x8",
];
const REGIONS: &[&str] = &["ny2", "ca1", "ams1"];
const DISKS: &[u64] = &[50, 100, 250, 500, 1000, 2000, 4000, 8000, 16_000];

const CREATE: &[Field] = &[
    must("name", Form::Text(255)),
    must("machineType", Form::Text(64)),
    must("templateId", Form::Text(64)),
    must("diskSize", Form::Whole { min: 50 }),
    must("region", Form::OneOf(REGIONS)),
    may("networkId", Form::Text(64)),
    may("publicIpType", Form::OneOf(&["static", "dynamic", "none"])),
    may("startOnCreate", Form::Flag),
    may("startupScriptId", Form::Text(64)),
    may("autoShutdownEnabled", Form::Flag),
    may("autoShutdownTimeout", Form::Whole { min: 1 }),
    may("autoShutdownForce", Form::Flag),
    may("enableNvlink", Form::Flag),
    may("emailPassword", Form::Flag),
];

const SCRIPT: &[Field] = &[
    must("name", Form::Text(255)),
    must("script", Form::Text(1 << 16)),
    may("isRunOnce", Form::Flag),
];

fn refused(status: u16, code: &str, message: &str) -> Answer {
    Answer::json(status, &json!({"code": code, "message": message}))
}

fn invalid(world: &mut World, asked: &Asked, why: &str) -> Answer {
    world.complain(asked, why);
    refused(400, "BAD_REQUEST", why)
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    if asked.header("authorization") != format!("Bearer {}", world.script.key) {
        return refused(401, "UNAUTHORIZED", asked.header("authorization"));
    }
    let parts = asked.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (asked.method.as_str(), parts.as_slice()) {
        ("GET", ["v1", "machine-availability"]) => {
            let query = asked.query();
            if query.keys().collect::<Vec<_>>() != ["machineType", "region"] {
                return invalid(world, asked, "machineType and region are required");
            }
            let known = TYPES.contains(&query["machineType"].as_str());
            Answer::json(200, &json!({"available": known && !world.script.sold_out}))
        }
        ("POST", ["v1", "startup-scripts"]) => {
            match asked
                .json()
                .and_then(|body| check(&body, SCRIPT).map(|()| body))
            {
                Ok(body) => {
                    world
                        .scripts
                        .push(body["script"].as_str().unwrap_or_default().to_owned());
                    Answer::json(
                        200,
                        &json!({"id": format!("script-{}", world.scripts.len()), "name": body["name"]}),
                    )
                }
                Err(why) => invalid(world, asked, &why),
            }
        }
        ("POST", ["v1", "machines"]) => create(world, asked),
        ("GET", ["v1", "machines"]) => list(world, asked),
        ("GET", ["v1", "machines", id]) => {
            let all = world.listed();
            match all.iter().find(|(rented, _)| rented.id == *id) {
                Some((rented, phase)) => Answer::json(200, &machine(rented, *phase)),
                None => refused(404, "NOT_FOUND", "Machine not found"),
            }
        }
        ("DELETE", ["v1", "machines", id]) => {
            let all = world.listed();
            match all.iter().find(|(rented, _)| rented.id == *id) {
                Some((rented, phase)) => {
                    world.end(id);
                    Answer::json(200, &json!({"event": {}, "data": machine(rented, *phase)}))
                }
                None => refused(404, "NOT_FOUND", "Machine not found"),
            }
        }
        _ => {
            world.complain(asked, "there is no such operation");
            refused(404, "NOT_FOUND", "no such route")
        }
    }
}

fn create(world: &mut World, asked: &Asked) -> Answer {
    let body = match asked
        .json()
        .and_then(|body| check(&body, CREATE).map(|()| body))
    {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    if !body["diskSize"]
        .as_u64()
        .is_some_and(|size| DISKS.contains(&size))
    {
        return invalid(world, asked, "there is no disk of this size");
    }
    if world.script.no_balance {
        return refused(400, "BAD_REQUEST", "A payment method is required");
    }
    if world.is_full() {
        return refused(
            400,
            "BAD_REQUEST",
            "You have reached your limit of machines",
        );
    }
    let kind = body["machineType"].as_str().unwrap_or_default();
    if world.script.sold_out || !TYPES.contains(&kind) {
        return refused(
            400,
            "BAD_REQUEST",
            "This machine type is not available: out of capacity",
        );
    }
    let mut rented = world.blank(body["name"].as_str().unwrap_or_default());
    rented.kind = kind.to_owned();
    rented.region = body["region"].as_str().unwrap_or_default().to_owned();
    let mut said = body.clone();
    said["script"] = world.scripts.last().cloned().into();
    rented.said = said;
    let now = machine(&rented, Phase::Booting);
    world.machines.push(rented);
    Answer::json(200, &json!({"event": {"id": "e"}, "data": now}))
}

/// Pages of two, so that every list has some.
fn list(world: &mut World, asked: &Asked) -> Answer {
    let query = asked.query();
    let limit: usize = query
        .get("limit")
        .map_or(0, |limit| limit.parse().unwrap_or(0));
    if !(1..=120).contains(&limit) {
        return invalid(world, asked, "limit is not within 1 and 120");
    }
    let from: usize = query
        .get("after")
        .map_or(0, |after| after.parse().unwrap_or(0));
    let all = world.listed();
    let page = all.iter().skip(from).take(2);
    let page: Vec<Value> = page
        .map(|(rented, phase)| machine(rented, *phase))
        .collect();
    let more = from + 2 < all.len();
    let next = more.then(|| (from + 2).to_string());
    Answer::json(
        200,
        &json!({"items": page, "hasMore": more, "nextPage": next}),
    )
}

fn machine(rented: &Rented, phase: Phase) -> Value {
    let state = match phase {
        Phase::Booting => "provisioning",
        Phase::Running => "ready",
        Phase::Preempted => "off",
        Phase::Ending | Phase::Gone => "stopping",
    };
    json!({
        "id": rented.id, "name": rented.name, "state": state, "machineType": rented.kind,
        "region": rented.region, "publicIp": "192.0.2.10", "privateIp": "10.0.0.10",
        "dtCreated": rented.created.to_string(),
    })
}
