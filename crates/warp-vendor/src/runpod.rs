//! RunPod REST v2 by its OpenAPI description: bodies are closed, so an unknown field is a 422.

use std::time::Duration;

use serde_json::{Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

/// Id, maker, GB, hundredths of a cent for one, the most in one machine, data centres with what they have.
type Row = (
    &'static str,
    &'static str,
    u32,
    u64,
    u32,
    &'static [(&'static str, &'static str)],
);
const GPUS: &[Row] = &[
    (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA",
        80,
        32_900,
        8,
        &[("US-CA-2", "HIGH"), ("EU-RO-1", "LOW")],
    ),
    (
        "NVIDIA L4",
        "NVIDIA",
        24,
        4900,
        4,
        &[("US-CA-2", "MEDIUM"), ("EU-NL-1", "NONE")],
    ),
    (
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA",
        80,
        15_900,
        8,
        &[("EU-RO-1", "MEDIUM")],
    ),
    (
        "AMD Instinct MI300X OAM",
        "AMD",
        192,
        23_900,
        8,
        &[("EU-RO-1", "LOW")],
    ),
    (
        "NVIDIA Voodoo 9",
        "UNKNOWN",
        1,
        100,
        1,
        &[("US-CA-2", "HIGH")],
    ),
];

const CREATE: &[Field] = &[
    must("name", Form::Text(1 << 10)),
    may("image", Form::Text(1 << 10)),
    may("templateId", Form::Text(64)),
    may("cloud", Form::OneOf(&["SECURE", "COMMUNITY"])),
    may(
        "gpu",
        Form::Object(&[
            must("id", Form::Text(64)),
            may("count", Form::Whole { min: 1 }),
            may("allowedCudaVersions", Form::Texts),
            may("minCudaVersion", Form::Text(8)),
        ]),
    ),
    may("cpu", Form::Any),
    may("dataCenterIds", Form::Texts),
    may("disk", Form::Whole { min: 1 }),
    may("env", Form::Map),
    may("ports", Form::Texts),
    may("args", Form::Text(1 << 16)),
    may("registry", Form::Any),
    may("mounts", Form::Any),
    may("globalNetworking", Form::Flag),
    may("startSsh", Form::Flag),
    may("startJupyter", Form::Flag),
];

fn problem(status: u16, title: &str, detail: &str) -> Answer {
    let body = json!({"title": title, "status": status, "detail": detail});
    Answer::json(status, &body)
}

fn invalid(world: &mut World, asked: &Asked, why: &str) -> Answer {
    world.complain(asked, why);
    problem(422, "Unprocessable Entity", why)
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    let fast = world.is_too_fast("all", Duration::from_secs(1));
    if fast {
        return problem(429, "Too Many Requests", "slow down").with("retry-after", "2");
    }
    if asked.header("authorization") != format!("Bearer {}", world.script.key) {
        let words = format!("{} is not known", asked.header("authorization"));
        return problem(401, "Unauthorized", &words);
    }
    let parts = asked.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let answer = match (asked.method.as_str(), parts.as_slice()) {
        ("GET", ["v2", "catalog", "gpus"]) => catalogue(world, asked),
        ("GET", ["v2", "pods"]) => {
            let all = world.listed();
            let all: Vec<Value> = all
                .iter()
                .map(|(rented, phase)| pod(world, rented, *phase))
                .collect();
            Answer::json(200, &json!({"pods": all}))
        }
        ("POST", ["v2", "pods"]) => create(world, asked),
        ("GET", ["v2", "pods", id]) => {
            let all = world.listed();
            match all.iter().find(|(rented, _)| rented.id == *id) {
                Some((rented, phase)) => Answer::json(200, &pod(world, rented, *phase)),
                None => problem(404, "Not Found", "pod not found"),
            }
        }
        ("DELETE", ["v2", "pods", id]) => {
            let there = world.listed().iter().any(|(rented, _)| rented.id == *id);
            if there && world.end(id) {
                Answer::empty(204)
            } else {
                problem(404, "Not Found", "pod not found")
            }
        }
        _ => {
            world.complain(asked, "there is no such operation");
            problem(404, "Not Found", "no such route")
        }
    };
    answer.with("ratelimit", "\"minute\";r=42;t=30, \"hour\";r=2900;t=3000")
}

fn catalogue(world: &mut World, asked: &Asked) -> Answer {
    let query = asked.query();
    for (name, value) in &query {
        let good = match name.as_str() {
            "include" => value == "AVAILABILITY",
            "product" => ["POD", "CLUSTER", "SERVERLESS"].contains(&value.as_str()),
            "cloud" => ["SECURE", "COMMUNITY"].contains(&value.as_str()),
            "count" => value.parse::<u32>().is_ok_and(|count| count > 0),
            _ => false,
        };
        if !good {
            return invalid(
                world,
                asked,
                &format!("the parameter {name}={value} is not allowed"),
            );
        }
    }
    let wanted = query.contains_key("include");
    if wanted && !query.contains_key("product") {
        return invalid(world, asked, "product is required with include");
    }
    let gpu = |(id, maker, memory, price, most, places): &Row| {
        let price = price_of(world.price(*price));
        let mut gpu = json!({
            "id": id, "name": id, "pool": null, "manufacturer": maker, "memory": memory,
            "secure": true, "community": false,
            "price": {"secure": price, "community": 0.0},
            "maxCount": {"secure": most, "community": 0},
        });
        if wanted {
            let level = |have: &str| {
                if world.script.sold_out {
                    "NONE".to_owned()
                } else {
                    have.to_owned()
                }
            };
            let places: Vec<Value> = places
                .iter()
                .map(|(id, have)| json!({"id": id, "name": id, "availability": level(have)}))
                .collect();
            gpu["availability"] = level("HIGH").into();
            gpu["dataCenters"] = places.into();
        }
        gpu
    };
    let gpus: Vec<Value> = GPUS.iter().map(gpu).collect();
    Answer::json(200, &json!({"gpus": gpus}))
}

/// Hundredths of a cent as dollars.
fn price_of(hundredths: u64) -> Value {
    let text = format!("{}.{:04}", hundredths / 10_000, hundredths % 10_000);
    serde_json::from_str(&text).unwrap_or_default()
}

fn create(world: &mut World, asked: &Asked) -> Answer {
    let body = asked
        .json()
        .and_then(|body| check(&body, CREATE).map(|()| body));
    let body = match body {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    let has = |name: &str| body.get(name).is_some();
    if !has("image") && !has("templateId") {
        return invalid(world, asked, "image is required without templateId");
    }
    if has("gpu") == has("cpu") {
        return invalid(world, asked, "exactly one of gpu and cpu");
    }
    if world.script.no_balance {
        return problem(402, "Payment Required", "the balance is too low");
    }
    let id = body["gpu"]["id"].as_str().unwrap_or_default();
    let count = body["gpu"]["count"].as_u64().unwrap_or(1);
    let Some((kind, _, _, _, most, places)) = GPUS.iter().find(|(known, ..)| *known == id) else {
        return problem(400, "Bad Request", "there is no such GPU type");
    };
    let wanted = body["dataCenterIds"][0].as_str().unwrap_or_default();
    let here = places
        .iter()
        .any(|(place, have)| *place == wanted && *have != "NONE");
    if world.script.sold_out || !here || count > u64::from(*most) || world.is_full() {
        let words = "There are no instances currently available with the requested specifications";
        return problem(400, "Bad Request", words);
    }
    let mut rented = world.blank(body["name"].as_str().unwrap_or_default());
    rented.kind = (*kind).to_owned();
    rented.region = wanted.to_owned();
    rented.gpus = u32::try_from(count).unwrap_or(1);
    rented.said = body.clone();
    let now = pod(world, &rented, Phase::Booting);
    world.machines.push(rented);
    Answer::json(201, &now)
}

fn pod(world: &World, rented: &Rented, phase: Phase) -> Value {
    let status = match phase {
        Phase::Booting => "PROVISIONING",
        Phase::Running | Phase::Ending => "RUNNING",
        Phase::Preempted => "EXITED",
        Phase::Gone => "TERMINATED",
    };
    let found = GPUS.iter().find(|(id, ..)| *id == rented.kind);
    let price = found.map_or(0, |(_, _, _, price, ..)| world.price(*price));
    json!({
        "id": rented.id, "name": rented.name, "status": status,
        "actions": ["stop", "terminate"], "image": "example/image", "args": "", "disk": 50,
        "mounts": {}, "ports": [], "env": {}, "registry": null,
        "gpu": {"id": rented.kind, "count": rented.gpus},
        "cloud": "SECURE", "dataCenterId": rented.region, "cudaVersion": null,
        "ssh": {"proxy": null, "direct": null}, "template": null,
        "cost": price_of(price * u64::from(rented.gpus)),
        "locked": false, "runtime": null,
        "createdAt": rented.created.to_string(), "startedAt": null, "globalNetworking": {"enabled": false},
    })
}
