//! The reference page cannot drift from what the tests know: its lists of differences are the very data that decide
//! which differences are allowed.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::Value;
use warp_testkit::page::check_part;

use crate::differential::known;
use crate::exchange::json;

const PAGE: &str = "docs/reference/embedded.md";

#[test]
fn the_reference_page_lists_every_known_difference_of_an_answer() {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (case, reason) in known() {
        reasons.entry(reason).or_default().push(case);
    }
    let mut text = String::new();
    for (reason, cases) in reasons {
        let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        text += &format!("- {reason} ({})\n", cases.join(", "));
    }
    check_part(PAGE, "answers", &text).unwrap();
}

/// (group and version, name of the resource) of everything a server says it serves.
async fn discovered(client: &Client) -> BTreeSet<(String, String)> {
    let mut versions = vec!["v1".to_owned()];
    let (_, groups) = json(client, "GET", "/apis", &Value::Null).await;
    for group in groups["groups"].as_array().into_iter().flatten() {
        for version in group["versions"].as_array().into_iter().flatten() {
            versions.extend(version["groupVersion"].as_str().map(str::to_owned));
        }
    }
    let mut found = BTreeSet::new();
    for version in versions {
        let root = if version.contains('/') { "apis" } else { "api" };
        let (_, list) = json(client, "GET", &format!("/{root}/{version}"), &Value::Null).await;
        for resource in list["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default().to_owned();
            found.insert((version.clone(), name));
        }
    }
    found
}

/// What a real server of the same release serves and this one does not.
pub(crate) async fn lists_what_is_not_served(real: &Client, ours: &Client) {
    let (theirs, own) = (discovered(real).await, discovered(ours).await);
    // Definitions the cases of the other tests made are nobody's difference.
    let custom = |version: &str| version.contains("example.com") || version.contains("warp.dev");
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (version, name) in theirs
        .difference(&own)
        .filter(|(version, _)| !custom(version))
    {
        missing
            .entry(version)
            .or_default()
            .push(format!("`{name}`"));
    }
    let mut text = "| Group and version | Not served |\n|---|---|\n".to_owned();
    for (version, names) in missing {
        text += &format!("| {version} | {} |\n", names.join(", "));
    }
    check_part(PAGE, "not served", &text).unwrap();
    let more: Vec<_> = own
        .difference(&theirs)
        .filter(|(version, _)| !custom(version))
        .collect();
    assert!(more.is_empty(), "served here only: {more:?}");
}
