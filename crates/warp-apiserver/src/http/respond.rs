//! Answers: objects in the form the client asked for, errors as Status, warnings as headers.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::{Answer, Api, Content};
use crate::codec::negotiate::{Form, View};
use crate::codec::status::Status;
use crate::codec::table::{self, IncludeObject};
use crate::registry::Entry;

const JSON: &str = "application/json";

pub(crate) fn error(status: &Status) -> Response<Body> {
    let mut response = json_response(status.code, Bytes::from(status.to_json().to_string()));
    let after = status
        .details
        .as_ref()
        .and_then(|d| d["retryAfterSeconds"].as_u64());
    if let Some(after) = after
        && let Ok(value) = HeaderValue::from_str(&after.to_string())
    {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    if status.code == 401 {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

pub(super) fn json_response(code: u16, body: Bytes) -> Response<Body> {
    typed(code, JSON, body)
}

pub(super) fn typed(code: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for text in warnings {
        let clean: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let quoted = clean.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

pub(super) fn render(
    api: &Api,
    entry: &Entry,
    answer: Answer,
    form: Form,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let Answer {
        code,
        content,
        warnings,
    } = answer;
    let mut response = match (form.view, form.yaml, content) {
        (View::Object, false, Content::Bytes(bytes)) => json_response(code, bytes),
        (View::Object, false, Content::Value(value)) => {
            json_response(code, Bytes::from(value.to_string()))
        }
        (view, yaml, content) => {
            let value = match content {
                Content::Value(value) => value,
                Content::Bytes(bytes) => {
                    serde_json::from_slice(&bytes).map_err(Status::internal)?
                }
            };
            let value = if is_status(&value) {
                value
            } else {
                view_of(api, entry, value, view, include)?
            };
            if yaml {
                let text = serde_saphyr::to_string(&value).map_err(Status::internal)?;
                typed(code, "application/yaml", Bytes::from(text))
            } else {
                json_response(code, Bytes::from(value.to_string()))
            }
        }
    };
    warn(&mut response, &warnings);
    Ok(response)
}

fn is_status(value: &Value) -> bool {
    value["kind"] == "Status" && value["apiVersion"] == "v1"
}

/// An object or list as a table or as metadata only.
pub(super) fn view_of(
    api: &Api,
    entry: &Entry,
    value: Value,
    view: View,
    include: IncludeObject,
) -> Result<Value, Status> {
    match view {
        View::Object => Ok(value),
        View::Table(version) => {
            if entry.resource.review.is_some() || entry.resource.columns.is_empty() {
                return Err(Status::not_acceptable());
            }
            let (objects, meta) = objects(value);
            let mut table = table::table(&entry.resource, &objects, include, api.clock.now());
            table["apiVersion"] = format!("meta.k8s.io/{version}").into();
            table["metadata"] = meta;
            Ok(table)
        }
        View::Metadata(version) => {
            let list = value["items"].is_array();
            let (objects, meta) = objects(value);
            let api_version = format!("meta.k8s.io/{version}");
            let mut items: Vec<Value> = objects.iter().map(table::partial).collect();
            for item in &mut items {
                item["apiVersion"] = api_version.clone().into();
            }
            if list {
                Ok(json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": api_version,
                    "metadata": meta,
                    "items": items,
                }))
            } else {
                Ok(items.into_iter().next().unwrap_or_default())
            }
        }
    }
}

/// The objects of a list (or the one object) and the list's metadata.
fn objects(mut value: Value) -> (Vec<Value>, Value) {
    match value["items"].take() {
        Value::Array(items) => (items, value["metadata"].take()),
        _ => {
            if let Some(map) = value.as_object_mut() {
                map.shift_remove("items");
            }
            let revision = value["metadata"]["resourceVersion"].clone();
            (vec![value], json!({"resourceVersion": revision}))
        }
    }
}
