//! Vast.ai by its OpenAPI description: offers are single machines, bids below the lowest are refused, and sometimes leave
//! a stopped machine behind.

use std::time::Duration;

use serde_json::{Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

/// Id, name, GPUs, MB of one, dollars an hour, lowest bid, place.
type Row = (u64, &'static str, u32, u32, f64, f64, &'static str);
const OFFERS: &[Row] = &[
    (11_001, "RTX 4090", 1, 24_564, 0.40, 0.20, "Denmark, DK, EU"),
    (11_002, "H100 SXM", 8, 81_559, 20.0, 12.5, "California, US"),
    (
        11_003,
        "A100 SXM4",
        1,
        40_960,
        0.80,
        0.5,
        "South Korea, KR, AS",
    ),
    (11_004, "RTX 5090", 2, 32_607, 0.88, 0.0, ", CA, NA"),
    (11_005, "Voodoo 2", 1, 12, 0.01, 0.01, "Sweden, SE"),
];

const SEARCH: &[Field] = &[
    may("limit", Form::Whole { min: 1 }),
    may("type", Form::OneOf(&["ondemand", "bid", "reserved"])),
    may("verified", Form::Object(&[may("eq", Form::Flag)])),
    may("rentable", Form::Object(&[may("eq", Form::Flag)])),
    may("rented", Form::Object(&[may("eq", Form::Flag)])),
    may("allocated_storage", Form::Number),
];

const CREATE: &[Field] = &[
    must("image", Form::Text(1 << 10)),
    may("label", Form::Text(256)),
    may("disk", Form::Number),
    may(
        "runtype",
        Form::OneOf(&[
            "ssh",
            "jupyter",
            "args",
            "ssh_proxy",
            "ssh_direct",
            "jupyter_proxy",
            "jupyter_direct",
        ]),
    ),
    may("target_state", Form::OneOf(&["running", "stopped"])),
    may("price", Form::Number),
    may("env", Form::Text(1 << 14)),
    may("cancel_unavail", Form::Flag),
    may("vm", Form::Flag),
    may("onstart", Form::Text(4048)),
    may("args", Form::Texts),
];

fn refused(status: u16, error: &str, msg: &str) -> Answer {
    Answer::json(
        status,
        &json!({"success": false, "error": error, "msg": msg}),
    )
}

fn invalid(world: &mut World, asked: &Asked, why: &str) -> Answer {
    world.complain(asked, why);
    refused(400, "invalid_args", why)
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    let parts = asked.parts();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    if world.is_too_fast("all", Duration::from_secs(1)) {
        return Answer::raw(429, Vec::new(), b"API requests too frequent".to_vec());
    }
    if asked.header("authorization") != format!("Bearer {}", world.script.key) {
        return refused(401, "auth_error", asked.header("authorization"));
    }
    match (asked.method.as_str(), parts.as_slice()) {
        ("POST", ["api", "v0", "bundles"]) => search(world, asked),
        ("PUT", ["api", "v0", "asks", id]) => create(world, asked, id),
        ("GET", ["api", "v1", "instances"]) => list(world, asked),
        ("GET", ["api", "v0", "instances", id]) => {
            let all = world.listed();
            let found = all.iter().find(|(rented, _)| rented.id == *id);
            // The vendor answers 200 with nothing in it.
            let found = found.map(|(rented, phase)| instance(world, rented, *phase));
            Answer::json(
                200,
                &found.map_or(json!({}), |found| json!({"instances": found})),
            )
        }
        ("DELETE", ["api", "v0", "instances", id]) => {
            let there = world.listed().iter().any(|(rented, _)| rented.id == *id);
            if there && world.end(id) {
                Answer::json(200, &json!({"success": true, "msg": "destroyed"}))
            } else {
                refused(404, "no_such_instance", "not found")
            }
        }
        _ => {
            world.complain(asked, "there is no such operation");
            refused(404, "not_found", "no such route")
        }
    }
}

fn search(world: &mut World, asked: &Asked) -> Answer {
    let body = asked
        .json()
        .and_then(|body| check(&body, SEARCH).map(|()| body));
    if let Err(why) = body {
        return invalid(world, asked, &why);
    }
    let percent = f64::from(world.script.price_percent) / 100.0;
    let offer = |(id, name, gpus, ram, price, bid, place): &Row| {
        json!({
            "id": id, "gpu_name": name, "num_gpus": gpus, "gpu_ram": ram, "rentable": true,
            "dph_base": price * percent, "dph_total": price * percent, "min_bid": bid * percent,
            "geolocation": place, "machine_id": id, "host_id": 7, "reliability": 0.99,
        })
    };
    let shown: &[Row] = if world.script.sold_out { &[] } else { OFFERS };
    let offers: Vec<Value> = shown.iter().map(offer).collect();
    Answer::json(200, &json!({"offers": offers}))
}

fn create(world: &mut World, asked: &Asked, id: &str) -> Answer {
    let body = asked
        .json()
        .and_then(|body| check(&body, CREATE).map(|()| body));
    let body = match body {
        Ok(body) => body,
        Err(why) => return invalid(world, asked, &why),
    };
    if world.script.no_balance {
        return refused(403, "insufficient_credit", "your credit is used up");
    }
    let found = OFFERS.iter().find(|(known, ..)| known.to_string() == id);
    let Some((_, kind, gpus, _, _, least, place)) = found.filter(|_| !world.script.sold_out) else {
        return refused(410, "no_such_ask", "this offer is gone");
    };
    if world.is_full() {
        return refused(410, "no_such_ask", "this offer is gone");
    }
    let bid = body["price"].as_f64();
    if bid.is_some_and(|bid| !(0.001..=128.0).contains(&bid)) {
        return invalid(world, asked, "price is not within 0.001 and 128");
    }
    let mut rented = world.blank(body["label"].as_str().unwrap_or_default());
    rented.kind = (*kind).to_owned();
    rented.region = (*place).to_owned();
    rented.gpus = *gpus;
    rented.spot = bid.is_some();
    rented.said = body.clone();
    let contract: u64 = rented.id.parse().unwrap_or_default();
    let low = bid.is_some_and(|bid| bid < *least);
    rented.preempted = low;
    world.machines.push(rented);
    if low {
        let answer = json!({"success": false, "error": "outbid", "msg": "the bid is too low", "new_contract": contract});
        return Answer::json(400, &answer);
    }
    Answer::json(200, &json!({"success": true, "new_contract": contract}))
}

/// Pages of three, so that every list has some.
fn list(world: &mut World, asked: &Asked) -> Answer {
    let query = asked.query();
    let limit = query
        .get("limit")
        .and_then(|limit| limit.parse::<usize>().ok());
    if limit.is_none_or(|limit| limit == 0 || limit > 25) {
        return invalid(world, asked, "limit is not within 1 and 25");
    }
    let from: usize = query
        .get("after_token")
        .map_or(0, |token| token.parse().unwrap_or(0));
    let all = world.listed();
    let page = all.iter().skip(from).take(3);
    let page: Vec<Value> = page
        .map(|(rented, phase)| instance(world, rented, *phase))
        .collect();
    let next = (from + 3 < all.len()).then(|| (from + 3).to_string());
    Answer::json(
        200,
        &json!({
            "success": true, "instances": page, "next_token": next,
            "instances_found": all.len(), "total_instances": all.len(),
        }),
    )
}

fn instance(world: &World, rented: &Rented, phase: Phase) -> Value {
    let status = match phase {
        Phase::Booting => None,
        Phase::Running | Phase::Ending => Some("running"),
        Phase::Preempted | Phase::Gone => Some("exited"),
    };
    let found = OFFERS.iter().find(|(_, name, ..)| *name == rented.kind);
    let percent = f64::from(world.script.price_percent) / 100.0;
    let price = found.map_or(
        0.1,
        |(.., price, bid, _)| if rented.spot { *bid } else { *price },
    ) * percent;
    json!({
        "id": rented.id.parse::<u64>().unwrap_or_default(), "label": rented.name,
        "actual_status": status, "intended_status": "running", "cur_state": "running",
        "next_state": "running", "is_bid": rented.spot, "dph_total": price,
        "start_date": rented.created.as_second(), "geolocation": rented.region, "public_ipaddr": "192.0.2.9",
        "status_msg": null,
    })
}
