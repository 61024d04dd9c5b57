//! Alerts and dashboards ask for what the operator really tells, and every alert has a page that says what to do.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use serde_json::Value;
use warp_testkit::until;

use crate::architecture::root;
use crate::up::{PATIENCE, Up};

/// Names of our metrics in an expression, without what a histogram or counter adds.
fn asked(expression: &str) -> BTreeSet<String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression
        .split(|c: char| !letter(c))
        .filter(|word| word.starts_with("warp_"))
        .map(|word| {
            let cut = ["_total", "_bucket", "_count", "_sum"];
            let end = cut.into_iter().find(|end| word.ends_with(end));
            word.strip_suffix(end.unwrap_or_default())
                .unwrap_or(word)
                .to_owned()
        })
        .collect()
}

fn alerts() -> Vec<Value> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/alerts.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = file["spec"]["groups"].as_array().unwrap().clone();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn panels() -> Vec<Value> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/dashboard.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["panels"].as_array().unwrap().clone()
}

/// The names a running operator tells.
async fn told() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(
        &folder.path().join("data"),
        &["--runtime", "none", "--ephemeral"],
    )
    .await;
    let note = std::fs::read_to_string(up.data.join("up.json")).unwrap();
    let note: Value = serde_json::from_str(&note).unwrap();
    let page = note["metrics"].as_str().unwrap().to_owned();
    let address = page
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .unwrap()
        .to_owned();
    let text = until("the metrics page", PATIENCE, async || {
        let Ok(mut stream) = std::net::TcpStream::connect(&address) else {
            return Ok(None);
        };
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.contains("# TYPE warp_").then_some(text))
    })
    .await
    .unwrap();
    up.stop();
    let shown = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|rest| rest.split(' ').next())
        .map(str::to_owned);
    // What has not happened yet is not shown: its name is where it is registered, and every kind has its passes.
    let kinds = text
        .lines()
        .filter_map(|line| line.strip_prefix("warp_operator_kind_ready{kind=\""))
        .filter_map(|rest| rest.split('"').next())
        .map(|kind| format!("warp_{kind}_reconcile_duration_seconds"));
    let sources = ["metrics.rs", "metrics/clouds.rs", "metrics/tenants.rs"].map(|name| {
        let path = root().join("crates/warp-operator/src").join(name);
        std::fs::read_to_string(path).unwrap()
    });
    let source = sources.concat();
    let registered = source
        .split('"')
        .filter(|text| text.starts_with("warp_") && !text.contains(['{', ' ']))
        .map(str::to_owned);
    let registered: Vec<String> = registered.collect();
    shown.chain(kinds).chain(registered).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_and_dashboards_ask_for_metrics_that_are_there() {
    let told = told().await;
    let rules = alerts()
        .into_iter()
        .map(|rule| rule["expr"].as_str().unwrap().to_owned());
    let targets = panels().into_iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().clone();
        targets
            .into_iter()
            .map(|target| target["expr"].as_str().unwrap().to_owned())
    });
    let mut count = 0;
    for expression in rules.chain(targets) {
        for name in asked(&expression) {
            assert!(
                told.contains(&name),
                "{name} of {expression} is not in {told:?}"
            );
            count += 1;
        }
    }
    assert!(count >= 20, "{count} metrics were looked for");
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let mut pages = BTreeSet::new();
    for rule in alerts() {
        let name = rule["alert"].as_str().unwrap();
        let page = rule["annotations"]["runbook"].as_str().unwrap();
        assert_eq!(page, format!("docs/runbooks/{name}.md"));
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(text.starts_with(&format!("# {name}\n")), "{page}");
        assert!(text.contains("**What to do.**"), "{page}");
        pages.insert(format!("{name}.md"));
    }
    let found: BTreeSet<String> = std::fs::read_dir(root().join("docs/runbooks"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, pages);
}

/// promtool itself is asked by `make test-alerts`; here it is only seen that it is asked about every alert.
#[test]
fn every_alert_has_a_moment_at_which_it_fires_and_one_at_which_it_does_not() {
    let text = std::fs::read_to_string(root().join("testbed/promtool/tests.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let (mut fires, mut keeps_quiet) = (BTreeSet::new(), BTreeSet::new());
    for test in file["tests"].as_array().unwrap() {
        for moment in test["alert_rule_test"].as_array().unwrap() {
            let name = moment["alertname"].as_str().unwrap().to_owned();
            let fired = moment["exp_alerts"].as_array();
            let seen = if fired.is_some_and(|alerts| !alerts.is_empty()) {
                &mut fires
            } else {
                &mut keeps_quiet
            };
            seen.insert(name);
        }
    }
    let shipped: BTreeSet<String> = alerts()
        .iter()
        .map(|rule| rule["alert"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(fires, shipped, "fires");
    assert_eq!(keeps_quiet, shipped, "keeps quiet");
}
