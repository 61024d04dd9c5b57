//! The reference page of a kind, written from its CRD.

use std::fmt::Write as _;

use serde_json::Value;

use crate::crd;

/// Markdown for one CRD: fields of spec and status, the rules, the printer columns.
pub fn page(crd: &Value) -> String {
    let schema = crd::schema(crd);
    let names = &crd["spec"]["names"];
    let mut out = String::new();
    let kind = names["kind"].as_str().unwrap_or_default();
    let version = crd["spec"]["versions"][0]["name"]
        .as_str()
        .unwrap_or_default();
    let _ = writeln!(out, "# {kind}\n");
    let _ = writeln!(
        out,
        "<!-- Generated from the CRD by `UPDATE=1 cargo test -p warp-api`. -->\n"
    );
    let _ = writeln!(
        out,
        "`{}/{version}`, short name `{}`. {}\n",
        crd["spec"]["group"].as_str().unwrap_or_default(),
        names["shortNames"][0].as_str().unwrap_or_default(),
        schema["description"].as_str().unwrap_or_default()
    );
    for part in ["spec", "status"] {
        let _ = writeln!(
            out,
            "## {part}\n\n| field | type | default | meaning |\n|---|---|---|---|"
        );
        fields(&mut out, &schema["properties"][part], "");
        out.push('\n');
    }
    let _ = writeln!(out, "## Rules\n\n| at | refused with |\n|---|---|");
    rules(&mut out, schema, "");
    let _ = writeln!(
        out,
        "\n## Columns of `kubectl get`\n\n| column | from |\n|---|---|"
    );
    for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let wide = if column["priority"].as_i64() > Some(0) {
            " (`-o wide`)"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "| {}{wide} | `{}` |",
            column["name"].as_str().unwrap_or_default(),
            column["jsonPath"].as_str().unwrap_or_default()
        );
    }
    out
}

fn fields(out: &mut String, schema: &Value, prefix: &str) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let default = match (&field["default"], required.contains(&name.as_str())) {
            (Value::Null, true) => "required".to_owned(),
            (Value::Null, false) => String::new(),
            (value, _) => format!("`{value}`"),
        };
        let text = field["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        let _ = writeln!(
            out,
            "| `{prefix}{name}` | {} | {default} | {} |",
            describe(field),
            text.replace('|', "\\|")
        );
        // Kubernetes documents its own types better than a copy would.
        let foreign = [
            "podTemplate",
            "env",
            "conditions",
            "securityContext",
            "podSecurityContext",
            "selector",
        ]
        .contains(&name.as_str());
        if !foreign {
            fields(out, field, &format!("{prefix}{name}."));
            fields(out, &field["items"], &format!("{prefix}{name}[]."));
        }
    }
}

fn describe(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    if let Some(values) = field["enum"].as_array() {
        let names: Vec<String> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"))
            .collect();
        return names.join(" ");
    }
    let kind = field["type"].as_str().unwrap_or("any");
    let mut text = match (
        kind,
        field["items"]["type"].as_str(),
        field["format"].as_str(),
    ) {
        ("array", Some(inner), _) => format!("list of {inner}"),
        ("string", _, Some("date-time")) => "time".to_owned(),
        _ => kind.to_owned(),
    };
    match (field["minimum"].as_f64(), field["maximum"].as_f64()) {
        (Some(low), Some(high)) => text = format!("{text} {low}–{high}"),
        (Some(low), None) => text = format!("{text} ≥ {low}"),
        _ => {}
    }
    text
}

fn rules(out: &mut String, schema: &Value, path: &str) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let place = if path.is_empty() { "(object)" } else { path };
        let _ = writeln!(
            out,
            "| `{place}` | {} |",
            rule["message"].as_str().unwrap_or_default()
        );
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        rules(out, field, &below);
        rules(out, &field["items"], &format!("{below}[]"));
    }
}
