//! CustomResourceDefinition: its own defaults and checks. What a definition serves is registered
//! elsewhere; its schemas are judged by `schema::structural`.

use serde_json::{Map, Value, json};

use super::checks::{Errors, immutable};
use super::fields::{at, flag, list, text};
use super::{Described, columns, describe, metadata, typed};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::cel::field_path;
use crate::schema::{FieldError, Path, go_quote, is_known_format, structural};

pub(super) fn descriptor() -> Described {
    describe(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
    .short("crd")
    .short("crds")
    .category("api-extensions")
    .cluster()
    .subresources([Subresource::Status])
    .columns(vec![columns::name(), columns::created_at()])
    .strategy(Strategy {
        default: |object| typed::round_trip("apiextensions.CustomResourceDefinition", object),
        prepare_create: |object| {
            let stored = stored_versions(object, &[]);
            object["status"] = json!({
                "conditions": null,
                "acceptedNames": {"plural": "", "kind": ""},
                "storedVersions": stored,
            });
        },
        prepare_update: |object, old| {
            let known = list(old, "status.storedVersions").to_vec();
            let stored = stored_versions(object, &known);
            object["status"] = old.get("status").cloned().unwrap_or_else(|| json!({}));
            object["status"]["storedVersions"] = Value::Array(stored);
        },
        validate,
        validate_update,
        warnings: unknown_formats,
        generation: true,
        unconditional_update: false,
        ..Strategy::default()
    })
}

fn stored_versions(object: &Value, known: &[Value]) -> Vec<Value> {
    let mut stored = known.to_vec();
    for version in list(object, "spec.versions")
        .iter()
        .filter(|version| flag(version, "storage"))
    {
        let name = json!(text(version, "name"));
        if !stored.contains(&name) {
            stored.push(name);
        }
    }
    stored
}

/// Formats nobody checks are accepted, but the author may have meant another.
fn unknown_formats(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for version in list(object, "spec.versions") {
        if let Some(schema) = at(version, "schema.openAPIV3Schema") {
            collect_unknown_formats(schema, &mut found);
        }
    }
    found
}

fn collect_unknown_formats(schema: &Value, found: &mut Vec<String>) {
    let format = text(schema, "format");
    if text(schema, "type") == "string" && !format.is_empty() && !is_known_format(format) {
        let warning = format!("unrecognized format {}", go_quote(format));
        if !found.contains(&warning) {
            found.push(warning);
        }
    }
    for name in ["properties", "items", "additionalProperties", "not"] {
        match schema.get(name) {
            Some(Value::Object(members)) if name == "properties" => {
                for member in members.values() {
                    collect_unknown_formats(member, found);
                }
            }
            Some(member @ Value::Object(_)) => collect_unknown_formats(member, found),
            _ => {}
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for member in list(schema, name) {
            collect_unknown_formats(member, found);
        }
    }
}

fn joined(problems: &[String]) -> String {
    problems.join(",")
}

fn validate(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let path = Path::new("spec");
    let name = text(object, "metadata.name");
    if name != format!("{}.{}", text(spec, "names.plural"), text(spec, "group")) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(
            &Path::new("metadata.name"),
            name,
            detail,
        ));
    }
    group(spec, &path, &mut errors);
    let scopes = ["Cluster", "Namespaced"];
    super::checks::one_of(spec, "scope", &scopes, &path, &mut errors);
    versions(spec, &path, &mut errors);
    first_version(spec, &path, &mut errors);
    names(spec, &path.child("names"), &mut errors);
    top_level(spec, &path, &mut errors);
    conversion(spec, &path.child("conversion"), &mut errors);
    stored(object, &mut errors);
    approval(object, &mut errors);
    if flag(spec, "preserveUnknownFields") {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            &path.child("preserveUnknownFields"),
            true,
            detail,
        ));
    }
    errors
}

fn group(spec: &Value, path: &Path, errors: &mut Errors) {
    let group = text(spec, "group");
    let path = path.child("group");
    let problems = metadata::subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !problems.is_empty() {
        errors.push(FieldError::invalid(&path, group, joined(&problems)));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(FieldError::invalid(&path, group, detail));
    }
}

/// What all versions say alike is checked (and blamed) once, at the top.
fn shared<'a>(spec: &'a Value, name: &str) -> Option<&'a Value> {
    let versions = list(spec, "versions");
    let first = at(versions.first()?, name)?;
    versions
        .iter()
        .all(|version| at(version, name) == Some(first))
        .then_some(first)
}

fn versions(spec: &Value, path: &Path, errors: &mut Errors) {
    let versions = list(spec, "versions");
    let path = path.child("versions");
    let one_schema = shared(spec, "schema").is_some();
    let one_subresources = shared(spec, "subresources").is_some();
    let one_columns = shared(spec, "additionalPrinterColumns").is_some();
    let one_selectable = shared(spec, "selectableFields").is_some();
    for (index, version) in versions.iter().enumerate() {
        if at(version, "schema.openAPIV3Schema").is_none() {
            let path = path.index(index).child("schema").child("openAPIV3Schema");
            errors.push(FieldError::required(&path, ""));
        }
    }
    let mut seen = Vec::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let path = path.index(index);
        let name = text(version, "name");
        unique &= !seen.contains(&name);
        seen.push(name);
        let problems = metadata::dns1035_label(name);
        if !problems.is_empty() {
            errors.push(FieldError::invalid(
                &path.child("name"),
                name,
                joined(&problems),
            ));
        }
        deprecation(version, &path, errors);
        let schema = at(version, "schema.openAPIV3Schema");
        if let Some(schema) = schema.filter(|_| !one_schema) {
            let status = at(version, "subresources.status").is_some();
            let path = path.child("schema").child("openAPIV3Schema");
            errors.extend(structural::check(schema, &path, status));
        }
        if !one_subresources {
            scale(version, &path.child("subresources"), errors);
        }
        if !one_columns {
            printer_columns(version, &path.child("additionalPrinterColumns"), errors);
        }
        if !one_selectable {
            selectable(version, schema, &path.child("selectableFields"), errors);
        }
    }
    if !unique {
        let value = spec.get("versions").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            &path,
            value,
            "must contain unique version names",
        ));
    }
    if versions
        .iter()
        .filter(|version| flag(version, "storage"))
        .count()
        != 1
    {
        let value = spec.get("versions").cloned().unwrap_or_default();
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&path, value, detail));
    }
}

/// The first version is also known as the version.
fn first_version(spec: &Value, path: &Path, errors: &mut Errors) {
    let version = list(spec, "versions")
        .first()
        .map_or("", |version| text(version, "name"));
    let problems = metadata::dns1035_label(version);
    if !version.is_empty() && !problems.is_empty() {
        errors.push(FieldError::invalid(
            &path.child("version"),
            version,
            joined(&problems),
        ));
    }
}

fn top_level(spec: &Value, path: &Path, errors: &mut Errors) {
    let first = list(spec, "versions").first().cloned().unwrap_or_default();
    let schema = shared(spec, "schema").and_then(|schema| at(schema, "openAPIV3Schema"));
    if let Some(schema) = schema {
        let status = list(spec, "versions")
            .iter()
            .any(|v| at(v, "subresources.status").is_some());
        let path = path.child("validation").child("openAPIV3Schema");
        errors.extend(structural::check(schema, &path, status));
    }
    if shared(spec, "subresources").is_some() {
        scale(&first, &path.child("subresources"), errors);
    }
    if shared(spec, "additionalPrinterColumns").is_some() {
        printer_columns(&first, &path.child("additionalPrinterColumns"), errors);
    }
    if shared(spec, "selectableFields").is_some() {
        let schema = at(&first, "schema.openAPIV3Schema");
        selectable(&first, schema, &path.child("selectableFields"), errors);
    }
}

fn deprecation(version: &Value, path: &Path, errors: &mut Errors) {
    let Some(warning) = at(version, "deprecationWarning").and_then(Value::as_str) else {
        return;
    };
    let path = path.child("deprecationWarning");
    let mut refuse = |detail: &str| errors.push(FieldError::invalid(&path, warning, detail));
    if !flag(version, "deprecated") {
        refuse("can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        refuse("must be <= 256 characters long");
    }
    if warning.is_empty() {
        refuse("must not be an empty string");
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        refuse(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index \
             {index}"
        ));
    }
}

fn names(spec: &Value, path: &Path, errors: &mut Errors) {
    let names = spec.get("names").unwrap_or(&Value::Null);
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(names, name).is_empty() {
            errors.push(FieldError::required(&path.child(name), ""));
        }
    }
    let mut check = |value: &str, path: &Path, mixed: bool| {
        let lower = value.to_lowercase();
        let problems = metadata::dns1035_label(if mixed { &lower } else { value });
        if value.is_empty() || problems.is_empty() {
            return;
        }
        let detail = if mixed {
            format!(
                "may have mixed case, but should otherwise match: {}",
                joined(&problems)
            )
        } else {
            joined(&problems)
        };
        errors.push(FieldError::invalid(path, value, detail));
    };
    check(text(names, "plural"), &path.child("plural"), false);
    check(text(names, "singular"), &path.child("singular"), false);
    check(text(names, "kind"), &path.child("kind"), true);
    check(text(names, "listKind"), &path.child("listKind"), true);
    for list_name in ["shortNames", "categories"] {
        if list_name == "categories" {
            let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
            if !kind.is_empty() && kind == list_kind {
                let detail = "kind and listKind may not be the same";
                errors.push(FieldError::invalid(
                    &path.child("listKind"),
                    list_kind,
                    detail,
                ));
            }
        }
        for (index, value) in list(names, list_name).iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            let problems = metadata::dns1035_label(value);
            if !problems.is_empty() {
                let path = path.child(list_name).index(index);
                errors.push(FieldError::invalid(&path, value, joined(&problems)));
            }
        }
    }
}

fn simple_path(value: &str, path: &Path) -> Option<FieldError> {
    let detail = "must be a simple json path starting with .";
    (!value.starts_with('.')).then(|| FieldError::invalid(path, value, detail))
}

fn scale(version: &Value, path: &Path, errors: &mut Errors) {
    let Some(scale) = at(version, "subresources.scale") else {
        return;
    };
    for (name, prefix) in [
        ("specReplicasPath", ".spec."),
        ("statusReplicasPath", ".status."),
    ] {
        let value = text(scale, name);
        let path = path.child(&format!("scale.{name}"));
        if value.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if let Some(error) = simple_path(value, &path) {
            errors.push(error);
        } else if !value.starts_with(prefix) {
            let detail = format!(
                "should be a json path under {}",
                prefix.trim_end_matches('.')
            );
            errors.push(FieldError::invalid(&path, value, detail));
        }
    }
    let selector = text(scale, "labelSelectorPath");
    if selector.is_empty() {
        return;
    }
    let path = path.child("scale.labelSelectorPath");
    if let Some(error) = simple_path(selector, &path) {
        errors.push(error);
    } else if !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
        let detail = "should be a json path under either .spec or .status";
        errors.push(FieldError::invalid(&path, selector, detail));
    }
}

fn printer_columns(version: &Value, path: &Path, errors: &mut Errors) {
    const KINDS: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = [
        "byte",
        "date",
        "date-time",
        "double",
        "float",
        "int32",
        "int64",
        "password",
    ];
    for (index, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        let path = path.index(index);
        if text(column, "name").is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let kind = text(column, "type");
        let detail = format!("must be one of {}", KINDS.join(","));
        if kind.is_empty() {
            errors.push(FieldError::required(&path.child("type"), detail));
        } else if !KINDS.contains(&kind) {
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            let detail = format!("must be one of {}", FORMATS.join(","));
            errors.push(FieldError::invalid(&path.child("format"), format, detail));
        }
        let json_path = text(column, "jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(&path.child("JSONPath"), ""));
        } else {
            errors.extend(simple_path(json_path, &path.child("JSONPath")));
        }
    }
}

fn selectable(version: &Value, schema: Option<&Value>, path: &Path, errors: &mut Errors) {
    const MOST: usize = 8;
    let Some(schema) = schema.and_then(Value::as_object) else {
        return;
    };
    let mut seen: Vec<String> = Vec::new();
    for (index, field) in list(version, "selectableFields").iter().enumerate() {
        let path = path.index(index).child("jsonPath");
        let json_path = text(field, "jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let (target, found): (Path, &Map<String, Value>) =
            match field_path(schema, json_path, false) {
                Ok(found) => found,
                Err(reason) => {
                    let detail = format!("is an invalid path: {reason}");
                    errors.push(FieldError::invalid(&path, json_path, detail));
                    continue;
                }
            };
        if target.as_str().split('.').next() == Some("metadata") {
            let detail = "must not point to fields in metadata";
            errors.push(FieldError::invalid(&path, json_path, detail));
        }
        let kind = found
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !matches!(kind, "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string \
                          fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&path, json_path, detail));
        }
        if seen.contains(&target.to_string()) {
            errors.push(FieldError::duplicate(&path, json_path));
        } else {
            seen.push(target.to_string());
        }
    }
    if seen.len() > MOST {
        let count = i64::try_from(seen.len()).unwrap_or(i64::MAX);
        errors.push(FieldError::too_many(path, count, 8));
    }
}

/// Versions are converted by renaming only: nothing here calls a webhook, so a definition whose
/// versions need one is refused rather than served wrongly.
fn conversion(spec: &Value, path: &Path, errors: &mut Errors) {
    let conversion = spec.get("conversion").unwrap_or(&Value::Null);
    let strategies = ["None", "Webhook"];
    super::checks::one_of(conversion, "strategy", &strategies, path, errors);
    if text(conversion, "strategy") == "Webhook" {
        let versions = list(conversion, "webhook.conversionReviewVersions");
        if at(conversion, "webhook.clientConfig").is_none() {
            let detail = "required when strategy is set to Webhook";
            errors.push(FieldError::required(
                &path.child("webhookClientConfig"),
                detail,
            ));
        }
        if versions.is_empty() {
            errors.push(FieldError::required(
                &path.child("conversionReviewVersions"),
                "",
            ));
        }
        if list(spec, "versions").len() > 1 {
            errors.push(FieldError::not_supported(
                &path.child("strategy"),
                "Webhook",
                &["None"],
            ));
        }
    } else if at(conversion, "webhook").is_some() {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.push(FieldError::forbidden(
            &path.child("webhookClientConfig"),
            detail,
        ));
    }
}

fn stored(object: &Value, errors: &mut Errors) {
    let path = Path::new("status.storedVersions");
    let stored = list(object, "status.storedVersions");
    if stored.is_empty() {
        let detail = "must have at least one stored version";
        errors.push(FieldError::invalid(&path, Value::Null, detail));
        return;
    }
    let versions = list(object, "spec.versions");
    for (index, name) in stored.iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        if !versions.iter().any(|version| text(version, "name") == name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must \
                 remain in spec.versions until a storage migration ensures no data remains \
                 persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(&path.index(index), name, detail));
        }
    }
}

/// Groups of the Kubernetes community need a note saying who approved them.
fn approval(object: &Value, errors: &mut Errors) {
    const NOTE: &str = "api-approved.kubernetes.io";
    let group = text(object, "spec.group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")));
    if !protected {
        return;
    }
    let annotations = object.pointer("/metadata/annotations");
    let note = annotations
        .and_then(|map| map.get(NOTE))
        .and_then(Value::as_str);
    let path = Path::new("metadata.annotations").key(NOTE);
    let link = "see https://github.com/kubernetes/enhancements/pull/1111";
    match note.unwrap_or_default() {
        "" => {
            let detail =
                format!("protected groups must have approval annotation \"{NOTE}\", {link}");
            errors.push(FieldError::required(&path, detail));
        }
        note if note.starts_with("unapproved") => {}
        note => {
            let url = note.split_once("://").is_some_and(|(scheme, rest)| {
                !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
            });
            if !url {
                let detail = format!(
                    "protected groups must have approval annotation \"{NOTE}\" with either a URL \
                     or a reason starting with \"unapproved\", {link}"
                );
                errors.push(FieldError::invalid(&path, note, detail));
            }
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let established = list(old, "status.conditions")
        .iter()
        .any(|c| text(c, "type") == "Established" && text(c, "status") == "True");
    if established {
        immutable(new, old, "spec.scope", &mut errors);
        immutable(new, old, "spec.names.kind", &mut errors);
    }
    immutable(new, old, "spec.group", &mut errors);
    immutable(new, old, "spec.names.plural", &mut errors);
    errors
}
