//! ConfigMap, Secret and ServiceAccount.

use serde_json::{Value, json};

use super::checks::{Errors, immutable, named};
use super::fields::{at, entries, flag, list, text, unchanged};
use super::{Described, columns, describe, metadata, typed};
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

/// The most bytes of data one object may hold.
const LARGEST: usize = 1024 * 1024;

pub(super) fn descriptors() -> Vec<Described> {
    vec![config_map(), secret(), service_account()]
}

fn config_map() -> Described {
    describe("", "v1", "ConfigMap", "configmaps")
        .short("cm")
        .columns(vec![
            columns::name(),
            columns::with("Data", "integer", 0, |object, _| {
                json!(entries(object, "data").count() + entries(object, "binaryData").count())
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.ConfigMap", object),
            validate: validate_config_map,
            validate_update: |new, old| frozen(new, old, &["data", "binaryData"]),
            ..Strategy::default()
        })
}

fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3
        - text
            .bytes()
            .rev()
            .take_while(|byte| *byte == b'=')
            .count()
            .min(text.len() / 4 * 3)
}

fn validate_config_map(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        let path = Path::new("data").key(key);
        named(metadata::config_key(key), key, &path, &mut errors);
        if object
            .get("binaryData")
            .is_some_and(|binary| binary.get(key).is_some())
        {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(&path, key.as_str(), detail));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(object, "binaryData") {
        named(
            metadata::config_key(key),
            key,
            &Path::new("binaryData").key(key),
            &mut errors,
        );
        size += decoded_length(value);
    }
    if size > LARGEST {
        errors.push(FieldError::too_long(&Path::new("[]"), 1024 * 1024));
    }
    errors
}

/// What an immutable object may not change.
fn frozen(new: &Value, old: &Value, data: &[&str]) -> Errors {
    let mut errors = Vec::new();
    if flag(old, "immutable") {
        let detail = "field is immutable when `immutable` is set";
        if !flag(new, "immutable") {
            errors.push(FieldError::forbidden(&Path::new("immutable"), detail));
        }
        for name in data {
            if !unchanged(new, old, name) {
                errors.push(FieldError::forbidden(&Path::new(*name), detail));
            }
        }
    }
    errors
}

fn secret() -> Described {
    describe("", "v1", "Secret", "secrets")
        .columns(vec![
            columns::name(),
            columns::with("Type", "string", 0, |object, _| json!(text(object, "type"))),
            columns::with("Data", "integer", 0, |object, _| {
                json!(entries(object, "data").count())
            }),
            columns::age(),
        ])
        .selectable([SelectableField::new("type")])
        .strategy(Strategy {
            default: default_secret,
            validate: validate_secret,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                immutable(new, old, "type", &mut errors);
                errors.extend(frozen(new, old, &["data"]));
                errors
            },
            ..Strategy::default()
        })
}

/// `stringData` is a way to write `data`.
fn default_secret(object: &mut Value) {
    use base64::Engine as _;
    let plain = object
        .as_object_mut()
        .and_then(|map| map.remove("stringData"));
    if let Some(Value::Object(plain)) = plain
        && !plain.is_empty()
    {
        let mut data = object
            .get("data")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            data.insert(key, Value::String(encoded));
        }
        object["data"] = Value::Object(data);
    }
    typed::round_trip("core.Secret", object);
}

fn validate_secret(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        named(metadata::config_key(key), key, &path.key(key), &mut errors);
        size += decoded_length(value);
    }
    if size > LARGEST {
        errors.push(FieldError::too_long(&path, 1024 * 1024));
    }
    let has = |key: &str| {
        object
            .get("data")
            .is_some_and(|data| data.get(key).is_some())
    };
    let mut needs = |key: &str| {
        if !has(key) {
            errors.push(FieldError::required(&path.key(key), ""));
        }
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            let annotations = object.pointer("/metadata/annotations");
            let name = annotations
                .and_then(|map| map.get(NAME))
                .and_then(Value::as_str);
            if name.unwrap_or_default().is_empty() {
                let path = Path::new("metadata.annotations").key(NAME);
                errors.push(FieldError::required(&path, ""));
            }
        }
        "kubernetes.io/dockercfg" => {
            needs(".dockercfg");
            docker_config(object, ".dockercfg", &mut errors);
        }
        "kubernetes.io/dockerconfigjson" => {
            needs(".dockerconfigjson");
            docker_config(object, ".dockerconfigjson", &mut errors);
        }
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errors.push(FieldError::required(&path.key("username"), ""));
            errors.push(FieldError::required(&path.key("password"), ""));
        }
        "kubernetes.io/ssh-auth" => needs("ssh-privatekey"),
        "kubernetes.io/tls" => {
            needs("tls.crt");
            needs("tls.key");
        }
        _ => {}
    }
    errors
}

fn docker_config(object: &Value, key: &str, errors: &mut Errors) {
    use base64::Engine as _;
    let encoded = object
        .get("data")
        .and_then(|data| data.get(key))
        .and_then(Value::as_str);
    let Some(encoded) = encoded else { return };
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&decoded) {
        let path = Path::new("data").key(key);
        let value = "<secret contents redacted>";
        errors.push(FieldError::invalid(
            &path,
            value,
            go_json_error(&decoded, &error),
        ));
    }
}

/// The reference's words for the usual mistake: something that is no JSON at all.
fn go_json_error(text: &[u8], error: &serde_json::Error) -> String {
    let first = String::from_utf8_lossy(text).trim_start().chars().next();
    match first {
        None => "unexpected end of JSON input".to_owned(),
        Some(c) if !"{[\"-0123456789tfn".contains(c) => {
            format!("invalid character '{c}' looking for beginning of value")
        }
        Some(_) => error.to_string(),
    }
}

fn service_account() -> Described {
    describe("", "v1", "ServiceAccount", "serviceaccounts")
        .short("sa")
        .subresources([Subresource::Token])
        .columns(vec![
            columns::name(),
            columns::with("Secrets", "integer", 0, |object, _| {
                json!(list(object, "secrets").len())
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.ServiceAccount", object),
            return_deleted: true,
            ..Strategy::default()
        })
}

/// Whether an object is being deleted.
pub(super) fn is_deleting(object: &Value) -> bool {
    at(object, "metadata.deletionTimestamp").is_some()
}
