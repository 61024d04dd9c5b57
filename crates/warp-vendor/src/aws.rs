//! Amazon EC2's query API and its price list, by their documentation: signatures are computed again, every parameter must
//! be a known one, and a launch with a token that was used is the same launch. `moto` judges the forms as well.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};
use serde_json::{Value, json};

use crate::wire::{Answer, Asked};
use crate::world::{Phase, Rented, World};

pub(crate) const KEY_ID: &str = "AKIDOFTHETESTS";

/// Type, GPUs, ten-thousandths of a dollar on demand and spot.
const TYPES: &[(&str, u32, u64, u64)] = &[
    ("g6.xlarge", 1, 8048, 3100),
    ("g4dn.12xlarge", 4, 39_120, 15_000),
    ("p5.48xlarge", 8, 550_400, 0),
    ("g5.xlarge", 1, 10_060, 4_020),
    ("dl1.24xlarge", 8, 131_000, 50_000),
];
const REGION: &str = "us-east-1";

/// What each action takes; `.N` stands for a number.
const ACTIONS: &[(&str, &[&str])] = &[
    (
        "DescribeInstances",
        &[
            "Filter.N.Name",
            "Filter.N.Value.N",
            "InstanceId.N",
            "NextToken",
            "MaxResults",
        ],
    ),
    ("TerminateInstances", &["InstanceId.N"]),
    (
        "DescribeSpotPriceHistory",
        &[
            "StartTime",
            "ProductDescription.N",
            "InstanceType.N",
            "NextToken",
            "MaxResults",
        ],
    ),
    (
        "RunInstances",
        &[
            "ImageId",
            "InstanceType",
            "MinCount",
            "MaxCount",
            "ClientToken",
            "InstanceInitiatedShutdownBehavior",
            "TagSpecification.N.ResourceType",
            "TagSpecification.N.Tag.N.Key",
            "TagSpecification.N.Tag.N.Value",
            "UserData",
            "KeyName",
            "SubnetId",
            "SecurityGroupId.N",
            "BlockDeviceMapping.N.DeviceName",
            "BlockDeviceMapping.N.Ebs.VolumeSize",
            "InstanceMarketOptions.MarketType",
            "InstanceMarketOptions.SpotOptions.MaxPrice",
            "InstanceMarketOptions.SpotOptions.SpotInstanceType",
            "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior",
        ],
    ),
];

fn refused(status: u16, code: &str, message: &str) -> Answer {
    let message = message.replace('&', "&amp;").replace('<', "&lt;");
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
         <Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
    );
    xml(status, body)
}

fn xml(status: u16, body: String) -> Answer {
    let kind = vec![("content-type", "text/xml;charset=UTF-8".to_owned())];
    Answer::raw(status, kind, body.into_bytes())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether the signature is the one the secret makes.
fn signed(world: &World, asked: &Asked) -> Option<()> {
    let shown = asked
        .header("authorization")
        .strip_prefix("AWS4-HMAC-SHA256 ")?;
    let fields: BTreeMap<&str, &str> = shown
        .split(", ")
        .filter_map(|part| part.split_once('='))
        .collect();
    let (id, scope) = fields.get("Credential")?.split_once('/')?;
    let [day, region, service, "aws4_request"] = scope.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    let names = *fields.get("SignedHeaders")?;
    let needed = ["content-type", "host", "x-amz-date"];
    if id != KEY_ID
        || !needed
            .iter()
            .all(|name| names.split(';').any(|signed| signed == *name))
    {
        return None;
    }
    let mut lines = String::new();
    for name in names.split(';') {
        let _ = writeln!(lines, "{name}:{}", asked.header(name));
    }
    let sum = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
    let request = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        asked.method,
        asked.path,
        asked.raw_query,
        sum(&asked.body)
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        asked.header("x-amz-date"),
        sum(request.as_bytes())
    );
    let mut key = format!("AWS4{}", world.script.key).into_bytes();
    for part in [day, region, service, "aws4_request", &text] {
        let with = hmac::Key::new(hmac::HMAC_SHA256, &key);
        key = hmac::sign(&with, part.as_bytes()).as_ref().to_vec();
    }
    (*fields.get("Signature")? == hex(&key)).then_some(())
}

pub(crate) fn answer(world: &mut World, asked: &Asked) -> Answer {
    let prices = asked.header("x-amz-target");
    if signed(world, asked).is_none() {
        if !prices.is_empty() {
            let error = json!({"__type": "UnrecognizedClientException", "message": "The security token is invalid."});
            return Answer::json(400, &error);
        }
        return refused(
            401,
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
        );
    }
    if prices == "AWSPriceListService.GetProducts" {
        return products(world, asked);
    }
    let form = asked.form();
    let action = form.get("Action").cloned().unwrap_or_default();
    if asked.method != "POST"
        || form
            .get("Version")
            .is_none_or(|version| version != "2016-11-15")
    {
        world.complain(asked, "not the form of this API");
        return refused(400, "InvalidAction", "not the form of this API");
    }
    let Some((_, known)) = ACTIONS.iter().find(|(name, _)| *name == action) else {
        world.complain(asked, "there is no such action");
        return refused(400, "InvalidAction", "there is no such action");
    };
    for name in form
        .keys()
        .filter(|name| !["Action", "Version"].contains(&name.as_str()))
    {
        let parts = name.split('.').map(|part| {
            if part.parse::<u32>().is_ok() {
                "N"
            } else {
                part
            }
        });
        let shape = parts.collect::<Vec<_>>().join(".");
        if !known.contains(&shape.as_str()) {
            world.complain(asked, &format!("there is no parameter {name}"));
            return refused(400, "UnknownParameter", name);
        }
    }
    match action.as_str() {
        "RunInstances" => run(world, asked, &form),
        "TerminateInstances" => terminate(world, &form, region(asked)),
        "DescribeInstances" => describe(world, &form, region(asked)),
        _ => spot(world),
    }
}

/// The region that is asked: each has its own address, and knows only its own machines.
fn region(asked: &Asked) -> &str {
    let host = asked.header("host").strip_prefix("ec2.");
    let region = host.and_then(|host| host.strip_suffix(".amazonaws.com"));
    region.unwrap_or(REGION)
}

fn products(world: &mut World, asked: &Asked) -> Answer {
    let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    if asked.header("content-type") != "application/x-amz-json-1.1"
        || body["ServiceCode"] != "AmazonEC2"
    {
        world.complain(asked, "not the form of the price list");
        return Answer::json(
            400,
            &json!({"__type": "InvalidParameterException", "message": "form"}),
        );
    }
    let filters = body["Filters"].as_array().into_iter().flatten();
    let mut regions = filters.filter(|filter| filter["Field"] == "regionCode");
    let region = regions.next().and_then(|filter| filter["Value"].as_str());
    let region = region.unwrap_or(REGION);
    let entry = |(kind, gpus, price, _): &(&str, u32, u64, u64)| {
        let price = world.price(*price);
        let dollars = format!("{}.{:04}000000", price / 10_000, price % 10_000);
        json!({
            "product": {"attributes": {"instanceType": kind, "gpu": gpus.to_string(), "regionCode": region}},
            "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}}}}},
        })
        .to_string()
    };
    let all: Vec<String> = TYPES.iter().map(entry).collect();
    // Two pages, so that the second is asked for.
    let (page, next) = if body.get("NextToken").is_some() {
        (&all[3..], None)
    } else {
        (&all[..3], Some("more"))
    };
    let mut answer = json!({"FormatVersion": "aws_v1", "PriceList": page});
    if let Some(next) = next {
        answer["NextToken"] = next.into();
    }
    Answer::json(200, &answer)
}

fn spot(world: &World) -> Answer {
    let mut items = String::new();
    for (kind, _, _, price) in TYPES.iter().filter(|(.., price)| *price > 0) {
        for (zone, more) in [("a", 0), ("b", 500)] {
            let price = world.price(*price) + more;
            let _ = write!(
                items,
                "<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>\
                 <spotPrice>{}.{:04}00</spotPrice><availabilityZone>{REGION}{zone}</availabilityZone></item>",
                price / 10_000,
                price % 10_000
            );
        }
    }
    xml(
        200,
        format!(
            "<DescribeSpotPriceHistoryResponse><spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken></nextToken></DescribeSpotPriceHistoryResponse>"
        ),
    )
}

fn run(world: &mut World, asked: &Asked, form: &BTreeMap<String, String>) -> Answer {
    let text = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    let problem = if text("MinCount") != "1" || text("MaxCount") != "1" {
        Some("MinCount and MaxCount")
    } else if text("ImageId").is_empty() {
        Some("ImageId")
    } else if text("ClientToken").is_empty() || text("ClientToken").len() > 64 {
        Some("ClientToken")
    } else if !text("UserData").is_empty() && STANDARD.decode(text("UserData")).is_err() {
        Some("UserData")
    } else {
        None
    };
    if let Some(name) = problem {
        world.complain(asked, name);
        return refused(400, "InvalidParameterValue", name);
    }
    let same = world
        .machines
        .iter()
        .find(|rented| rented.token == text("ClientToken"));
    if let Some(same) = same {
        if same.kind != text("InstanceType") {
            return refused(
                400,
                "IdempotentParameterMismatch",
                "another request had this token",
            );
        }
        let same = instance(world, same, Phase::Booting);
        return xml(
            200,
            format!(
                "<RunInstancesResponse><instancesSet>{same}</instancesSet></RunInstancesResponse>"
            ),
        );
    }
    let Some((kind, gpus, _, spot)) = TYPES
        .iter()
        .find(|(kind, ..)| *kind == text("InstanceType"))
    else {
        return refused(
            400,
            "InvalidParameterValue",
            "there is no such instance type",
        );
    };
    if world.script.no_balance {
        return refused(400, "Blocked", "Your account is currently blocked.");
    }
    if world.is_full() {
        return refused(
            400,
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current limit.",
        );
    }
    if world.script.sold_out {
        return refused(
            500,
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient capacity.",
        );
    }
    let bids = text("InstanceMarketOptions.MarketType") == "spot";
    let bid: f64 = text("InstanceMarketOptions.SpotOptions.MaxPrice")
        .parse()
        .unwrap_or(0.0);
    #[expect(clippy::cast_precision_loss, reason = "prices are small")]
    let least = world.price(*spot) as f64 / 10_000.0;
    if bids && bid < least {
        return refused(
            400,
            "SpotMaxPriceTooLow",
            "Your Spot request price is lower than the minimum.",
        );
    }
    let mut rented = world.blank(text("TagSpecification.1.Tag.1.Value"));
    rented.id = format!("i-{}", rented.id);
    rented.kind = (*kind).to_owned();
    region(asked).clone_into(&mut rented.region);
    rented.gpus = *gpus;
    rented.spot = bids;
    rented.token = text("ClientToken").to_owned();
    let mut said = form.clone();
    let data = STANDARD.decode(text("UserData")).unwrap_or_default();
    said.insert(
        "UserData".to_owned(),
        String::from_utf8_lossy(&data).into_owned(),
    );
    rented.said = json!(said);
    let now = instance(world, &rented, Phase::Booting);
    world.machines.push(rented);
    xml(
        200,
        format!("<RunInstancesResponse><instancesSet>{now}</instancesSet></RunInstancesResponse>"),
    )
}

fn numbered<'a>(form: &'a BTreeMap<String, String>, name: &str) -> Vec<&'a str> {
    let named = form.iter().filter(|(key, _)| key.starts_with(name));
    named.map(|(_, value)| value.as_str()).collect()
}

fn missing(id: &str) -> Answer {
    let words = format!("The instance ID '{id}' does not exist");
    refused(400, "InvalidInstanceID.NotFound", &words)
}

fn terminate(world: &mut World, form: &BTreeMap<String, String>, region: &str) -> Answer {
    for id in numbered(form, "InstanceId.") {
        let here = |rented: &Rented| rented.id == id && rented.region == region;
        if !world.machines.iter().any(here) || !world.end(id) {
            return missing(id);
        }
    }
    xml(
        200,
        "<TerminateInstancesResponse><instancesSet/></TerminateInstancesResponse>".to_owned(),
    )
}

fn describe(world: &World, form: &BTreeMap<String, String>, region: &str) -> Answer {
    let ids = numbered(form, "InstanceId.");
    let prefix = form
        .get("Filter.1.Value.1")
        .map(|text| text.trim_end_matches('*'));
    let mut all = world.shown();
    all.retain(|(rented, _)| rented.region == region);
    for id in &ids {
        if !all.iter().any(|(rented, _)| rented.id == *id) {
            return missing(id);
        }
    }
    let wanted = |rented: &Rented| {
        (ids.is_empty() || ids.contains(&rented.id.as_str()))
            && prefix.is_none_or(|prefix| rented.name.starts_with(prefix))
    };
    let found = all.iter().filter(|(rented, _)| wanted(rented));
    let items: String = found
        .map(|(rented, phase)| instance(world, rented, *phase))
        .collect();
    xml(
        200,
        format!(
            "<DescribeInstancesResponse><reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet></DescribeInstancesResponse>"
        ),
    )
}

fn instance(_: &World, rented: &Rented, phase: Phase) -> String {
    let state = match phase {
        Phase::Booting => "pending",
        Phase::Running => "running",
        Phase::Ending => "shutting-down",
        Phase::Preempted | Phase::Gone => "terminated",
    };
    let spot = if rented.spot {
        "<instanceLifecycle>spot</instanceLifecycle>"
    } else {
        ""
    };
    format!(
        "<item><instanceId>{}</instanceId><instanceType>{}</instanceType><instanceState><code>0</code>\
         <name>{state}</name></instanceState>{spot}<launchTime>{}</launchTime>\
         <ipAddress>192.0.2.8</ipAddress><privateIpAddress>10.0.0.8</privateIpAddress>\
         <tagSet><item><key>Name</key><value>{}</value></item></tagSet></item>",
        rented.id, rented.kind, rented.created, rented.name
    )
}
