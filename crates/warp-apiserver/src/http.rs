//! The HTTP face: one request in, one answer out. Nothing here knows a kind; descriptors do.

mod authorize;
mod connect;
mod cork;
mod delete;
mod escalation;
mod options;
mod plain;
mod read;
mod respond;
mod review;
mod route;
pub(crate) mod selector;
mod server;
mod subresource;
mod token;
mod watch;
mod write;

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, header};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, AdmissionRequest, ReadState, Refusal};
use crate::audit::{AuditLog, Record};
use crate::auth::{Authenticator, Authorizer, User};
use crate::clock::Clock;
use crate::codec::negotiate::{Form, negotiate};
use crate::codec::status::{Status, Subject};
use crate::hooks::NodeHooks;
use crate::metrics::Metrics;
use crate::registry::{Entry, Registry};
use crate::store::{Store, Stored};
use options::Query;
pub(crate) use respond::error as error_response;
pub(crate) use route::{Route, Target};
pub(crate) use server::{connection, serve};

/// How long a client may take to send the body of a request.
const BODY_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// What one client may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request body.
    pub body: usize,
    /// Bytes of a stored object.
    pub object: usize,
    /// Watches open at once.
    pub watches: usize,
    /// Connections open at once.
    pub connections: usize,
    /// Requests worked on at once, watches apart.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 3 << 20,
            object: 3 << 19,
            watches: 16_384,
            connections: 8_192,
            requests: 1_024,
        }
    }
}

/// Everything a request needs.
pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) admission: Vec<Arc<dyn Admission>>,
    pub(crate) hooks: Arc<dyn NodeHooks>,
    pub(crate) auth: Authenticator,
    pub(crate) authorizer: Authorizer,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    audit: Option<AuditLog>,
    pub(crate) stop: CancellationToken,
    pub(crate) documents: plain::Documents,
    /// Slots for requests and for watches.
    requests: Semaphore,
    watches: Arc<Semaphore>,
    /// Writes that are judged by what others hold happen one at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
    cleanups: Mutex<HashSet<Arc<str>>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// What the server is made of.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) admission: Vec<Arc<dyn Admission>>,
    pub(crate) hooks: Arc<dyn NodeHooks>,
    pub(crate) auth: Authenticator,
    pub(crate) limits: Limits,
    pub(crate) audit: Option<AuditLog>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// This process: trusted as the administrator.
    Inside,
    /// A part of this process that has a role of its own.
    As(Arc<User>),
    /// A connection: authenticated and checked.
    Network,
}

/// One request, its body read.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) query: Query,
    pub(crate) form: Form,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) user: User,
    pub(crate) user_agent: String,
    pub(crate) accept: String,
    pub(crate) if_none_match: String,
}

/// An answer: status code, body, warnings.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) content: Content,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// JSON that is ready.
    Bytes(Bytes),
    Value(Value),
}

impl Answer {
    pub(crate) fn value(code: u16, value: Value) -> Self {
        Self {
            code,
            content: Content::Value(value),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn bytes(code: u16, bytes: Bytes) -> Self {
        Self {
            code,
            content: Content::Bytes(bytes),
            warnings: Vec::new(),
        }
    }
}

impl Api {
    pub(crate) fn new(parts: Parts) -> Self {
        let limits = parts.limits;
        Self {
            authorizer: Authorizer::new(&parts.store),
            store: parts.store,
            registry: parts.registry,
            clock: parts.clock,
            admission: parts.admission,
            hooks: parts.hooks,
            auth: parts.auth,
            limits,
            metrics: Metrics::new(),
            audit: parts.audit,
            stop: CancellationToken::new(),
            documents: plain::Documents::default(),
            requests: Semaphore::new(limits.requests),
            watches: Arc::new(Semaphore::new(limits.watches)),
            turn: tokio::sync::Mutex::new(()),
            cleanups: Mutex::new(HashSet::new()),
        }
    }

    /// Whether nobody else is removing the objects of this definition yet.
    pub(crate) fn begin_cleanup(&self, key: &Arc<str>) -> bool {
        self.cleanups.lock().insert(Arc::clone(key))
    }

    pub(crate) fn end_cleanup(&self, key: &Arc<str>) {
        self.cleanups.lock().remove(key);
    }

    /// Answers one request. Never fails: errors are answers.
    pub(crate) async fn handle<B>(
        self: &Arc<Self>,
        request: Request<B>,
        origin: Origin,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = tokio::time::Instant::now();
        let verb = request.method().clone();
        let route = Route::parse(request.uri().path());
        let label = self.label(&route);
        let audited = match (&self.audit, &origin) {
            (Some(log), Origin::Network) => Some((log, self.record(&request, &route))),
            _ => None,
        };
        let response = match self.answer(request, route, origin).await {
            Ok(response) => response,
            Err(status) => respond::error(&status),
        };
        self.metrics.request(
            verb.as_str(),
            &label,
            response.status().as_u16(),
            started.elapsed(),
        );
        if let Some((log, record)) = audited {
            log.write(&record, response.status().as_u16());
        }
        response
    }

    /// What metrics call a request: bounded, whatever clients send.
    fn label(&self, route: &Route) -> String {
        let Route::Resource(target) = route else {
            return route.label().to_owned();
        };
        let known = self
            .registry
            .find(&target.group, &target.version, &target.resource);
        known.map_or_else(
            || "other".to_owned(),
            |entry| crate::registry::resource::qualified(&entry.resource.plural, &target.group),
        )
    }

    /// What the audit log says about a request before its answer is known.
    fn record<B>(&self, request: &Request<B>, route: &Route) -> Record {
        let user = self
            .authenticate(request.headers())
            .unwrap_or_else(|_| User::anonymous());
        Record::new(request, route, user, self.clock.now())
    }

    async fn answer<B>(
        self: &Arc<Self>,
        request: Request<B>,
        route: Route,
        origin: Origin,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let author = match origin {
            Origin::Inside => User::admin(),
            Origin::As(user) => User::clone(&user),
            Origin::Network => {
                self.auth.check_origin(request.headers(), request.uri())?;
                if let Route::Health(_) = &route {
                    User::anonymous()
                } else {
                    self.authenticate(request.headers())?
                }
            }
        };
        // Whether the server is well is everybody's to know.
        let user = if let Route::Health(_) = &route {
            author
        } else {
            let user = self.acting(author, request.headers())?;
            self.authorize(&user, &request, &route)?;
            user
        };
        let (parts, body) = request.into_parts();
        if let Route::Resource(target) = &route
            && target.watch
            && target.subresource.is_some()
        {
            // Only objects are watched: the right to watch a stream must not open it.
            return Err(Status::no_such_path());
        }
        if let Route::Resource(target) = &route
            && let Some(response) = connect::upgrade(self, target, &parts).await?
        {
            return Ok(response);
        }
        let header = |name: header::HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let accept = header(header::ACCEPT);
        let body = self.read_body(body).await?;
        let call = Call {
            method: parts.method,
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            form: Form::JSON,
            content_type: header(header::CONTENT_TYPE),
            body,
            user,
            user_agent: header(header::USER_AGENT),
            accept,
            if_none_match: header(header::IF_NONE_MATCH),
        };
        match route {
            Route::Resource(target) => self.resource(target, call).await,
            other => plain::answer(self, other, &call).await,
        }
    }

    fn authenticate(&self, headers: &http::HeaderMap) -> Result<User, Status> {
        let token = Authenticator::bearer(headers).ok_or_else(Status::unauthorized)?;
        match self.whose(token, &[]) {
            Ok((user, _)) => Ok(user),
            Err(_) => Err(Status::unauthorized()),
        }
    }

    async fn read_body<B>(&self, body: B) -> Result<Bytes, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        use http_body_util::BodyExt;
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let limited = http_body_util::Limited::new(body, self.limits.body);
        let Ok(collected) = tokio::time::timeout(BODY_LIMIT, limited.collect()).await else {
            return Err(Status::timeout(format!(
                "the request body took longer than {} s",
                BODY_LIMIT.as_secs()
            )));
        };
        match collected {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Status::too_large(
                format!("Request entity too large: limit is {}", self.limits.body),
            )),
            Err(error) => Err(Status::bad_request(format!(
                "failed to read request body: {error}"
            ))),
        }
    }

    async fn resource(
        self: &Arc<Self>,
        target: Target,
        mut call: Call,
    ) -> Result<Response<Body>, Status> {
        let entry = self
            .registry
            .find(&target.group, &target.version, &target.resource)
            .filter(|entry| entry.resource.namespaced || target.namespace.is_none())
            .ok_or_else(Status::no_such_path)?;
        if target.watch && !matches!(call.method, Method::GET | Method::HEAD) {
            return Err(Status::no_such_method());
        }
        let watching = call.method == Method::GET
            && target.subresource.is_none()
            && (target.watch || (target.name.is_none() && call.query.flag("watch")));
        let _slot = if watching {
            None
        } else {
            let slot = self.requests.acquire().await;
            Some(slot.map_err(|_| Status::unavailable("the server is shutting down"))?)
        };
        call.form = if target.subresource.as_deref() == Some("log") {
            Form::JSON
        } else {
            negotiate(&call.accept)?
        };
        let mut warnings = Vec::new();
        if let Some(text) = entry
            .resource
            .custom
            .as_ref()
            .and_then(|c| c.deprecation.clone())
        {
            warnings.push(text);
        }
        let request = ResourceCall {
            api: self,
            entry,
            target,
            call,
        };
        // A refusal also says that the version is deprecated.
        let refused = |mut status: Status| {
            let after = status.warnings.into_vec();
            status.warnings = warnings.iter().cloned().chain(after).collect();
            status
        };
        if watching {
            return watch::watch(&request, &warnings).map_err(refused);
        }
        let form = request.call.form;
        let include = request.include().map_err(refused)?;
        let mut answer = request.run().await.map_err(refused)?;
        warnings.append(&mut answer.warnings);
        answer.warnings = warnings;
        respond::render(self, &request.entry, answer, form, include)
    }

    /// Makes a request of the server itself.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<(), String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from(body.to_string()))
            .map_err(|error| error.to_string())?;
        let response = self.handle(request, Origin::Inside).await;
        let code = response.status();
        if code.is_success() {
            return Ok(());
        }
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        let body = body.unwrap_or_default();
        Err(format!("{code}: {}", String::from_utf8_lossy(&body)))
    }

    /// Runs admission; what it refuses is worded for the object.
    pub(crate) fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        for plugin in &self.admission {
            match plugin.admit(request, &StoreState(&self.store)) {
                Ok(mut texts) => warnings.append(&mut texts),
                Err(refusal) => return Err(refused(refusal, request)),
            }
        }
        Ok(())
    }

    /// Deletes one object of a definition that is going away.
    pub(crate) async fn delete_instance(self: &Arc<Self>, entry: &Arc<Entry>, stored: &Stored) {
        delete::instance(self, entry, stored).await;
    }
}

fn refused(refusal: Refusal, request: &AdmissionRequest<'_>) -> Status {
    let resource = request.resource;
    let subject = Subject {
        group: &resource.group,
        resource: &resource.plural,
        kind: &resource.kind,
        name: request.name,
    };
    match refusal {
        Refusal::Forbidden { why, causes } => {
            let mut status = Status::forbidden(&subject, &why);
            if !causes.is_empty()
                && let Some(details) = &mut status.details
            {
                details["causes"] = causes.into();
            }
            status
        }
        Refusal::NotFound {
            group,
            resource,
            name,
        } => {
            let kind = resource.clone();
            Status::not_found(&Subject {
                group: &group,
                resource: &resource,
                kind: &kind,
                name: &name,
            })
        }
        Refusal::Invalid(errors) => Status::invalid(&subject, &errors),
    }
}

/// The state as admission sees it: `get` includes what is still on its way to disk, `list` does not.
struct StoreState<'a>(&'a Store);

impl ReadState for StoreState<'_> {
    fn get(&self, table: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let table = self.0.table(table);
        let key = crate::store::key(namespace, name);
        self.0.latest(&table, &key).map(|stored| stored.value())
    }

    fn list(&self, table: &str, namespace: Option<&str>) -> Vec<Value> {
        let objects = self.0.table(table).all(namespace);
        objects.iter().map(|stored| stored.value()).collect()
    }
}

/// A request for a resource that is served.
pub(crate) struct ResourceCall<'a> {
    pub(crate) api: &'a Arc<Api>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) target: Target,
    pub(crate) call: Call,
}

impl ResourceCall<'_> {
    fn include(&self) -> Result<crate::codec::table::IncludeObject, Status> {
        let text = self.call.query.get("includeObject");
        crate::codec::table::IncludeObject::parse(text).ok_or_else(|| {
            Status::bad_request(format!(
                "Invalid value: \"{text}\": supported values: \"None\", \"Metadata\", \"Object\""
            ))
        })
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        let resource = &self.entry.resource;
        Subject {
            group: &resource.group,
            resource: &resource.plural,
            kind: &resource.kind,
            name: self.target.name.as_deref().unwrap_or_default(),
        }
    }

    /// The key of the object in the path.
    pub(crate) fn key(&self) -> String {
        let name = self.target.name.as_deref().unwrap_or_default();
        crate::store::key(self.target.namespace.as_deref(), name)
    }

    async fn run(&self) -> Result<Answer, Status> {
        if let Some(name) = &self.target.subresource {
            return subresource::run(self, name).await;
        }
        let verb = match (&self.call.method, self.target.name.is_some()) {
            (&Method::GET | &Method::HEAD, true) => "get",
            (&Method::GET | &Method::HEAD, false) => "list",
            (&Method::POST, false) => "create",
            (&Method::PUT, true) => "update",
            (&Method::PATCH, true) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            _ => return Err(Status::no_such_method()),
        };
        if !self.entry.resource.allows(verb) {
            return Err(Status::no_such_method());
        }
        if self.entry.resource.namespaced
            && self.target.namespace.is_none()
            && !matches!(verb, "list")
        {
            return Err(Status::no_such_method());
        }
        if let Some(review) = self.entry.resource.review {
            return review::answer(self, review);
        }
        match verb {
            "get" => read::get(self),
            "list" => read::list(self),
            "create" => write::create(self).await,
            "update" => write::update(self).await,
            "patch" => write::patch(self).await,
            "delete" => delete::delete(self).await,
            _ => delete::collection(self).await,
        }
    }
}
