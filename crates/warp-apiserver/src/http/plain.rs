//! Everything that is not an object: versions, discovery, OpenAPI, health, metrics.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::route::Route;
use super::{Api, Call, respond};
use crate::codec::hex;
use crate::codec::negotiate::aggregated;
use crate::codec::status::Status;
use crate::registry::discovery;
use crate::registry::resource::Resource;
use crate::schema::openapi::swagger;

/// The Kubernetes whose API this is.
pub(crate) const GIT_VERSION: &str = concat!("v1.35.4+warp.", env!("CARGO_PKG_VERSION"));

/// Whom nothing is refused.
const ADMINISTRATORS: &str = "system:masters";

/// OpenAPI documents, made when asked for and kept until the resources change.
#[derive(Debug, Default)]
pub(crate) struct Documents(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    generation: u64,
    documents: Vec<(String, Bytes, String)>,
    swagger: Option<Swagger>,
}

/// The document of version 2.
#[derive(Clone, Debug)]
struct Swagger {
    json: Bytes,
    proto: Bytes,
    hash: String,
}

pub(super) async fn answer(
    api: &Arc<Api>,
    route: Route,
    call: &Call,
) -> Result<Response<Body>, Status> {
    if !matches!(call.method, Method::GET | Method::HEAD) {
        return Err(match route {
            Route::Unknown => Status::no_such_path(),
            _ => Status::no_such_method(),
        });
    }
    let served = api.registry.served();
    let form = aggregated(&call.accept);
    let document = match route {
        Route::CoreVersions => match form {
            Some(form) => {
                return Ok(discovery_list(
                    discovery::aggregated(&served, true, form),
                    form,
                ));
            }
            None => discovery::core_versions(&api.auth.address()),
        },
        Route::Groups => match form {
            Some(form) => {
                return Ok(discovery_list(
                    discovery::aggregated(&served, false, form),
                    form,
                ));
            }
            None => discovery::groups(&served),
        },
        Route::Group(name) => discovery::group(&served, &name).ok_or_else(Status::no_such_path)?,
        Route::Resources(group, version) => {
            discovery::resources(&served, &group, &version).ok_or_else(Status::no_such_path)?
        }
        Route::Version => version(),
        Route::Root => root(&served),
        Route::OpenApi(path) => return openapi(api, path.as_deref(), call).await,
        Route::Swagger => return swagger(api, call).await,
        Route::Health(path) => return Ok(health(api, &path, call)),
        Route::Metrics => {
            let text = api.metrics.render(&api.store);
            return Ok(respond::typed(
                200,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                Bytes::from(text),
            ));
        }
        Route::Backup => return backup(api, call),
        Route::Resource(_) | Route::Unknown => return Err(Status::no_such_path()),
    };
    Ok(respond::json_response(
        200,
        Bytes::from(document.to_string()),
    ))
}

/// Everything there is. It holds every Secret: for administrators only, whatever else they grant.
fn backup(api: &Arc<Api>, call: &Call) -> Result<Response<Body>, Status> {
    if !call.user.groups.iter().any(|group| group == ADMINISTRATORS) {
        return Err(Status::forbidden_path(format!(
            "User {:?} cannot get path \"/backup\": only members of {ADMINISTRATORS} can",
            call.user.name
        )));
    }
    if let Some(reason) = api.store.failure() {
        // What was read and what is on disk are no longer the same.
        return Err(Status::internal(reason));
    }
    let chunks = api.store.snapshot().into_chunks(api.clock.now().into());
    let body = futures::stream::iter(chunks.map(Ok::<Bytes, std::convert::Infallible>));
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    Ok(response)
}

fn discovery_list(document: Bytes, form: &str) -> Response<Body> {
    let mut response = respond::json_response(200, document);
    let text = format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "35",
        "emulationMajor": "1",
        "emulationMinor": "35",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "34",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, arch()),
    })
}

/// The architecture as Go names it.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn root(served: &crate::registry::Served) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in served.groups().iter().filter(|(name, _)| !name.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(
            versions
                .iter()
                .map(|version| format!("/apis/{group}/{version}")),
        );
    }
    for path in [
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ] {
        paths.push(path.to_owned());
    }
    paths.sort();
    json!({"paths": paths})
}

fn health(api: &Api, path: &str, call: &Call) -> Response<Body> {
    let name = path.split('/').next().unwrap_or("healthz");
    let stopping = (api.stop.is_cancelled() && name == "readyz").then(|| "shutting down".into());
    let checks = [("ping", stopping), ("store", api.store.failure())];
    let failed = checks.iter().any(|(_, reason)| reason.is_some());
    let text = if failed || call.query.has("verbose") {
        let shown = checks.iter().map(|(check, reason)| match reason {
            Some(reason) => format!("[-]{check} failed: {reason}\n"),
            None => format!("[+]{check} ok\n"),
        });
        let verdict = if failed { "failed" } else { "passed" };
        let last = std::iter::once(format!("{name} check {verdict}\n"));
        shown.chain(last).collect()
    } else {
        "ok".to_owned()
    };
    let code = if failed { 500 } else { 200 };
    respond::typed(code, "text/plain; charset=utf-8", Bytes::from(text))
}

async fn openapi(
    api: &Arc<Api>,
    path: Option<&str>,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let api = Arc::clone(api);
    // Building documents takes tens of milliseconds the first time: not on a request thread.
    let task = {
        let api = Arc::clone(&api);
        tokio::task::spawn_blocking(move || api.documents.current(&api))
    };
    let documents = task.await.map_err(Status::internal)?;
    let Some(path) = path else {
        let paths: serde_json::Map<String, Value> = documents
            .iter()
            .map(|(path, _, hash)| {
                let url = format!("/openapi/v3/{path}?hash={hash}");
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        let document = json!({"paths": paths});
        return Ok(respond::json_response(
            200,
            Bytes::from(document.to_string()),
        ));
    };
    let (_, bytes, hash) = documents
        .into_iter()
        .find(|(known, _, _)| known == path)
        .ok_or_else(Status::no_such_path)?;
    let mut response = tagged(respond::json_response(200, bytes), &hash, call);
    let headers = response.headers_mut();
    if call.query.get("hash") == hash {
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("public, immutable"),
        );
    }
    Ok(response)
}

/// Version 2, in the form the client asks for.
async fn swagger(api: &Arc<Api>, call: &Call) -> Result<Response<Body>, Status> {
    let task = {
        let api = Arc::clone(api);
        tokio::task::spawn_blocking(move || api.documents.swagger(&api))
    };
    let document = task.await.map_err(Status::internal)?;
    let response = if call.accept.contains("proto-openapi.spec.v2") {
        let kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        respond::typed(200, kind, document.proto)
    } else {
        respond::json_response(200, document.json)
    };
    Ok(tagged(response, &document.hash, call))
}

/// The document under its tag, or the word that the client has it already.
fn tagged(mut response: Response<Body>, hash: &str, call: &Call) -> Response<Body> {
    let tag = format!("\"{hash}\"");
    if call
        .if_none_match
        .split(',')
        .any(|known| known.trim() == tag)
    {
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn hash(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    hex(digest.as_ref()).to_uppercase()
}

impl Documents {
    /// The document of version 2, made when it is first asked for.
    fn swagger(&self, api: &Api) -> Swagger {
        let served = api.registry.served();
        let documents = self.current(api);
        if let Some(known) = &self.0.lock().swagger {
            return known.clone();
        }
        let documents: Vec<Value> = documents
            .iter()
            .filter_map(|(_, bytes, _)| serde_json::from_slice(bytes).ok())
            .collect();
        let customs = served
            .entries()
            .iter()
            .map(|entry| entry.resource.as_ref())
            .filter(|resource| resource.custom.is_some());
        let document = swagger::document(documents.iter(), customs);
        let json = Bytes::from(document.to_string());
        let made = Swagger {
            proto: swagger::encode(&document).into(),
            hash: hash(&json),
            json,
        };
        let mut cache = self.0.lock();
        if cache.generation == served.generation {
            cache.swagger = Some(made.clone());
        }
        made
    }

    /// Path, bytes and hash of every group and version.
    fn current(&self, api: &Api) -> Vec<(String, Bytes, String)> {
        let served = api.registry.served();
        let mut cache = self.0.lock();
        if cache.generation != served.generation {
            cache.documents = served
                .groups()
                .iter()
                .flat_map(|(group, versions)| {
                    versions
                        .iter()
                        .map(move |version| (group.clone(), version.clone()))
                })
                .map(|(group, version)| {
                    let resources: Vec<Arc<Resource>> = served
                        .of(&group, &version)
                        .map(|entry| Arc::clone(&entry.resource))
                        .collect();
                    let document = crate::schema::openapi::document(&resources);
                    let bytes = Bytes::from(document.to_string());
                    let hash = hash(&bytes);
                    let path = if group.is_empty() {
                        format!("api/{version}")
                    } else {
                        format!("apis/{group}/{version}")
                    };
                    (path, bytes, hash)
                })
                .collect();
            cache.generation = served.generation;
            cache.swagger = None;
        }
        cache.documents.clone()
    }
}
