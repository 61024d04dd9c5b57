//! What a status says in figures, and what it leaves out.

use super::*;

fn copy(number: u32, node: &str) -> Arc<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": { "name": format!("chat-{number}"), "namespace": "ns", "uid": format!("p{number}") },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running" },
    }));
    Arc::new(pod.expect("a pod"))
}

fn heard(tokens_per_second: Option<u64>) -> Heard {
    Heard {
        load: Load {
            copies: 2,
            ..Load::default()
        },
        tokens_per_second,
        cache_tokens: Some(90_000),
    }
}

fn seen(prices: &[(&str, u64)], tokens_per_second: Option<u64>) -> Seen {
    let prices = prices
        .iter()
        .map(|(node, price)| ((*node).to_owned(), *price));
    Seen {
        pods: vec![copy(1, "a"), copy(2, "b")],
        prices: prices.collect(),
        heard: Some(heard(tokens_per_second)),
        asks: true,
        ..fleet(&[h100("a", 8), h100("b", 8)], &[])
    }
}

#[test]
fn costs_are_told_where_every_copys_node_has_a_price() {
    let it = service(json!({ "gpuCount": 2, "replicas": 2 }));
    let prices = [("a", 2_000_000), ("b", 3_000_000)];
    let status = written(&plan(&it, &seen(&prices, Some(1234)), now()));
    let cost = status.cost.expect("a cost");
    assert_eq!(cost.per_hour, "10.00");
    // 10 an hour, 1200 tokens a second: 4.32 million tokens an hour.
    assert_eq!(cost.per_million_tokens.as_deref(), Some("2.31"));
    let idle = written(&plan(&it, &seen(&prices, Some(0)), now()));
    assert_eq!(idle.load.expect("a load").tokens_per_second, Some(0));
    assert_eq!(idle.cost.expect("a cost").per_million_tokens, None);
    let first = written(&plan(&it, &seen(&prices, None), now()));
    assert_eq!(first.load.expect("a load").tokens_per_second, None);
    let unpriced = written(&plan(&it, &seen(&prices[..1], Some(5)), now()));
    assert_eq!(unpriced.cost, None, "half a price is none");
}

#[test]
fn an_engines_cache_is_compared_with_the_estimate_and_kept_while_nobody_answers() {
    let mut it = service(json!({}));
    it.metadata.annotations =
        Some([(label::ESTIMATED_CACHE.to_owned(), "100000".to_owned())].into());
    let status = written(&plan(&it, &seen(&[], None), now()));
    let size = status.cache.clone().expect("a size");
    assert_eq!(
        (size.tokens, size.estimated_tokens, size.percent_of_estimate),
        (90_000, Some(100_000), Some(90))
    );
    it.status = Some(status);
    let silent = Seen {
        heard: None,
        ..seen(&[], None)
    };
    let status = written(&plan(&it, &silent, now()));
    assert_eq!(status.cache, Some(size));
    assert_eq!(status.load, None, "no answer is no load at all");
}

#[test]
fn the_least_number_of_copies_follows_the_schedule() {
    let scaling = json!({
        "min": 1, "max": 8, "target": 10, "metric": "firstToken",
        "schedule": [{ "at": "11:30", "min": 3 }, { "at": "20:00", "min": 1 }],
    });
    let it = service(json!({ "scaling": scaling }));
    let made = plan(&it, &fleet(&[h100("a", 8)], &[]), now());
    let deployment = applied(&made, "Deployment").expect("one");
    assert_eq!(deployment["spec"]["replicas"], 3);
    let night = "2026-11-16T04:00:00Z".parse().expect("a time");
    let made = plan(&it, &fleet(&[h100("a", 8)], &[]), night);
    let deployment = applied(&made, "Deployment").expect("one");
    assert_eq!(deployment["spec"]["replicas"], 1);
}
