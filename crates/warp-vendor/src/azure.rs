//! Azure Resource Manager, its login and its price list, by notes on their documentation: only the fields the notes name
//! are accepted.

use serde_json::{Value, json};

use crate::form::{Field, Form, check, may, must};
use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

pub(crate) const TENANT: &str = "tenant-of-the-tests";
const TOKEN: &str = "azure-token";
const GROUP: &str =
    "/subscriptions/sub/resourceGroups/warp/providers/Microsoft.Compute/virtualMachines";

/// Size, ten-thousandths of a dollar on demand and spot.
const SIZES: &[(&str, u64, u64)] = &[
    ("Standard_NC4as_T4_v3", 5260, 1900),
    ("Standard_NC24ads_A100_v4", 36_730, 14_000),
    ("Standard_ND96isr_H100_v5", 983_200, 0),
    ("Standard_NV6ads_A10_v5", 4540, 900),
];

const SUBNET: &[Field] = &[must("id", Form::Text(512))];
const IP: &[Field] = &[
    must("primary", Form::Flag),
    must("subnet", Form::Object(SUBNET)),
];
const IPS: &[Field] = &[
    must("name", Form::Text(80)),
    must("properties", Form::Object(IP)),
];
const CARD: &[Field] = &[
    must("primary", Form::Flag),
    must("deleteOption", Form::OneOf(&["Delete", "Detach"])),
    must("ipConfigurations", Form::Objects(IPS)),
];
const CARDS: &[Field] = &[
    must("name", Form::Text(80)),
    must("properties", Form::Object(CARD)),
];
const DISK: &[Field] = &[
    must("createOption", Form::OneOf(&["FromImage"])),
    must("deleteOption", Form::OneOf(&["Delete", "Detach"])),
    may("diskSizeGB", Form::Whole { min: 1 }),
];
const KEYS: &[Field] = &[
    must("path", Form::Text(256)),
    must("keyData", Form::Text(4096)),
];
const LINUX: &[Field] = &[
    must("disablePasswordAuthentication", Form::Flag),
    must(
        "ssh",
        Form::Object(&[must("publicKeys", Form::Objects(KEYS))]),
    ),
];
const OS: &[Field] = &[
    must("computerName", Form::Text(64)),
    must("adminUsername", Form::Text(64)),
    may("customData", Form::Text(87_380)),
    must("linuxConfiguration", Form::Object(LINUX)),
];
const STORAGE: &[Field] = &[
    must(
        "imageReference",
        Form::Object(&[must("id", Form::Text(512))]),
    ),
    must("osDisk", Form::Object(DISK)),
];
const NETWORK: &[Field] = &[
    must("networkApiVersion", Form::Text(16)),
    must("networkInterfaceConfigurations", Form::Objects(CARDS)),
];
const PROPERTIES: &[Field] = &[
    must(
        "hardwareProfile",
        Form::Object(&[must("vmSize", Form::Text(64))]),
    ),
    must("storageProfile", Form::Object(STORAGE)),
    must("osProfile", Form::Object(OS)),
    must("networkProfile", Form::Object(NETWORK)),
    may("priority", Form::OneOf(&["Regular", "Low", "Spot"])),
    may("evictionPolicy", Form::OneOf(&["Deallocate", "Delete"])),
    may(
        "billingProfile",
        Form::Object(&[must("maxPrice", Form::Number)]),
    ),
];
const CREATE: &[Field] = &[
    must("location", Form::Text(64)),
    may("tags", Form::Map),
    must("properties", Form::Object(PROPERTIES)),
];

fn refused(status: u16, code: &str, message: &str) -> Answer {
    Answer::json(
        status,
        &json!({"error": {"code": code, "message": message}}),
    )
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    if asked.path == format!("/{TENANT}/oauth2/v2.0/token") {
        return log_in(world, asked);
    }
    if asked.path == "/api/retail/prices" {
        return prices(world, asked);
    }
    // A key that was taken back ends what it was given.
    let known = format!("Bearer {TOKEN}-{}", world.script.key);
    if asked.header("authorization") != known {
        return refused(
            401,
            "InvalidAuthenticationToken",
            "The access token is invalid.",
        );
    }
    let Some(name) = asked.path.strip_prefix(GROUP) else {
        world.complain(asked, "there is no such resource");
        return refused(404, "InvalidResourceType", "there is no such resource");
    };
    if asked
        .query()
        .get("api-version")
        .is_none_or(|version| version != "2024-07-01")
    {
        world.complain(asked, "api-version is missing or unknown");
        return refused(400, "MissingApiVersionParameter", "api-version");
    }
    let name = name.trim_start_matches('/');
    match (asked.method.as_str(), name) {
        ("GET", "") => {
            let all = world.listed();
            let all: Vec<Value> = all
                .iter()
                .map(|(rented, phase)| machine(rented, *phase))
                .collect();
            Answer::json(200, &json!({"value": all}))
        }
        ("GET", name) => {
            let all = world.listed();
            match all.iter().find(|(rented, _)| rented.name == name) {
                Some((rented, phase)) => Answer::json(200, &machine(rented, *phase)),
                None => refused(404, "ResourceNotFound", "The Resource was not found."),
            }
        }
        ("PUT", name) => create(world, asked, name),
        ("DELETE", name) => {
            let all = world.listed();
            let found = all.iter().find(|(rented, _)| rented.name == name);
            match found {
                Some((rented, _)) => {
                    world.end(&rented.id);
                    Answer::empty(202)
                }
                None => Answer::empty(204),
            }
        }
        _ => {
            world.complain(asked, "there is no such operation");
            refused(405, "MethodNotAllowed", "there is no such operation")
        }
    }
}

fn log_in(world: &mut World, asked: &Asked) -> Answer {
    let form = asked.form();
    let names: Vec<&str> = form.keys().map(String::as_str).collect();
    if names != ["client_id", "client_secret", "grant_type", "scope"] || asked.method != "POST" {
        world.complain(asked, "not the form of a login");
        return Answer::json(
            400,
            &json!({"error": "invalid_request", "error_description": "form"}),
        );
    }
    if form["client_secret"] != world.script.key {
        let error = json!({"error": "invalid_client", "error_description": "Invalid client secret provided."});
        return Answer::json(401, &error);
    }
    let token = format!("{TOKEN}-{}", world.script.key);
    Answer::json(
        200,
        &json!({"token_type": "Bearer", "access_token": token, "expires_in": 3599}),
    )
}

fn prices(world: &mut World, asked: &Asked) -> Answer {
    let filter = asked.query().get("$filter").cloned().unwrap_or_default();
    if !filter.contains("serviceName eq 'Virtual Machines'") || !filter.contains("armRegionName eq")
    {
        world.complain(asked, "not a filter of the price list");
        return refused(400, "BadRequest", "filter");
    }
    let row = |size: &str, price: u64, more: &str, product: &str| {
        let price = world.price(price);
        let price: Value =
            serde_json::from_str(&format!("{}.{:04}", price / 10_000, price % 10_000))
                .unwrap_or_default();
        json!({
            "currencyCode": "USD", "retailPrice": price, "armRegionName": "eastus", "armSkuName": size,
            "skuName": format!("{size}{more}"), "productName": product, "unitOfMeasure": "1 Hour",
        })
    };
    let mut rows = Vec::new();
    for (size, price, spot) in SIZES {
        rows.push(row(size, *price, "", "Virtual Machines N Series"));
        rows.push(row(
            size,
            price * 2,
            "",
            "Virtual Machines N Series Windows",
        ));
        rows.push(row(
            size,
            price / 9,
            " Low Priority",
            "Virtual Machines N Series",
        ));
        if *spot > 0 {
            rows.push(row(size, *spot, " Spot", "Virtual Machines N Series"));
        }
    }
    let first =
        !filter.contains("armRegionName eq 'eastus'") || asked.query().contains_key("$skip");
    let (page, next) = if first {
        (rows.split_off(5), None)
    } else {
        (rows[..5].to_vec(), Some(()))
    };
    let next = next.map(|()| {
        format!(
            "https://prices.azure.com/api/retail/prices?{}&$skip=5",
            asked.raw_query
        )
    });
    Answer::json(200, &json!({"Items": page, "NextPageLink": next}))
}

fn create(world: &mut World, asked: &Asked, name: &str) -> Answer {
    let body = match asked
        .json()
        .and_then(|body| check(&body, CREATE).map(|()| body))
    {
        Ok(body) => body,
        Err(why) => {
            world.complain(asked, &why);
            return refused(400, "InvalidParameter", &why);
        }
    };
    if let Some(same) = world
        .machines
        .iter()
        .find(|rented| rented.name == name && !rented.was_ended())
    {
        return Answer::json(200, &machine(same, Phase::Booting));
    }
    let size = body["properties"]["hardwareProfile"]["vmSize"]
        .as_str()
        .unwrap_or_default();
    let known = SIZES.iter().find(|(known, ..)| *known == size);
    if world.script.no_balance {
        return refused(
            409,
            "ReadOnlyDisabledSubscription",
            "The subscription is disabled.",
        );
    }
    if world.is_full() {
        let words = "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.";
        return refused(409, "OperationNotAllowed", words);
    }
    let Some((_, _, spot)) = known.filter(|_| !world.script.sold_out) else {
        return refused(
            409,
            "SkuNotAvailable",
            "The requested size is currently not available in this location.",
        );
    };
    let bids = body["properties"]["priority"] == "Spot";
    #[expect(clippy::cast_precision_loss, reason = "prices are small")]
    let least = world.price(*spot) as f64 / 10_000.0;
    if bids
        && body["properties"]["billingProfile"]["maxPrice"]
            .as_f64()
            .is_some_and(|most| most < least)
    {
        return refused(
            409,
            "OperationNotAllowed",
            "The max price is below the current Spot price.",
        );
    }
    let mut rented = world.blank(name);
    rented.kind = size.to_owned();
    rented.region = body["location"].as_str().unwrap_or_default().to_owned();
    rented.spot = bids;
    let mut said = body.clone();
    said["customData"] =
        crate::wire::decoded(&body["properties"]["osProfile"]["customData"]).into();
    rented.said = said;
    let now = machine(&rented, Phase::Booting);
    world.machines.push(rented);
    Answer::json(201, &now)
}

fn machine(rented: &Rented, phase: Phase) -> Value {
    let (state, power) = match phase {
        Phase::Booting => ("Creating", None),
        Phase::Running => ("Succeeded", Some("PowerState/running")),
        Phase::Preempted => ("Succeeded", Some("PowerState/deallocated")),
        Phase::Ending | Phase::Gone => ("Deleting", Some("PowerState/running")),
    };
    let statuses: Vec<Value> = power
        .into_iter()
        .map(|code| json!({"code": code}))
        .collect();
    let priority = if rented.spot { "Spot" } else { "Regular" };
    json!({
        "id": format!("{GROUP}/{}", rented.name), "name": rented.name, "location": rented.region,
        "properties": {
            "hardwareProfile": {"vmSize": rented.kind}, "provisioningState": state, "priority": priority,
            "timeCreated": rented.created.to_string(), "instanceView": {"statuses": statuses},
        },
    })
}
