//! Errors as Kubernetes' `Status`: clients branch on `reason`, so every constructor fills it, and
//! the texts are those client-go programs match on.

use serde_json::{Map, Value, json};

use crate::codec::body::OBJECT_TYPES;
use crate::schema::FieldError;

/// An error answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Value>>,
    /// Where an expired list can go on in the present.
    pub next: Option<Box<str>>,
    /// Texts of `Warning` headers: decoding may have warned before the object was refused.
    pub warnings: Box<[String]>,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

/// The object an error is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub group: &'a str,
    /// Plural for most errors, the kind for `Invalid`.
    pub resource: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

impl Subject<'_> {
    fn qualified(&self) -> String {
        crate::registry::resource::qualified(self.resource, self.group)
    }

    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        if !self.name.is_empty() {
            details.insert("name".into(), self.name.into());
        }
        if !self.group.is_empty() {
            details.insert("group".into(), self.group.into());
        }
        if !self.resource.is_empty() {
            details.insert("kind".into(), self.resource.into());
        }
        details
    }
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            next: None,
            warnings: Box::default(),
        }
    }

    fn about(mut self, subject: &Subject<'_>) -> Self {
        self.details = Some(Box::new(Value::Object(subject.details())));
        self
    }

    /// Carries warnings along, unless it carries some already: who gave them knew of these.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        if self.warnings.is_empty() {
            self.warnings = warnings.into();
        }
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(subject: &Subject<'_>, why: &str) -> Self {
        let text = if subject.resource.is_empty() {
            format!("forbidden: {why}")
        } else if subject.name.is_empty() {
            format!("{} is forbidden: {why}", subject.qualified())
        } else {
            format!(
                "{} \"{}\" is forbidden: {why}",
                subject.qualified(),
                subject.name
            )
        };
        Self::new(403, "Forbidden", text).about(subject)
    }

    pub fn forbidden_path(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    pub fn not_found(subject: &Subject<'_>) -> Self {
        let text = format!("{} \"{}\" not found", subject.qualified(), subject.name);
        Self::new(404, "NotFound", text).about(subject)
    }

    /// A path nothing is served at.
    pub fn no_such_path() -> Self {
        let mut status = Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        status.details = Some(Box::new(json!({})));
        status
    }

    pub fn method_not_allowed(subject: &Subject<'_>, verb: &str) -> Self {
        let text = format!(
            "{verb} is not supported on resources of kind \"{}\"",
            subject.qualified()
        );
        Self::new(405, "MethodNotAllowed", text).about(subject)
    }

    /// Something other servers do is not done here; `why` says what to do instead.
    pub fn not_served(why: &str) -> Self {
        Self::new(405, "MethodNotAllowed", why)
    }

    pub fn no_such_method() -> Self {
        let mut status = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        status.details = Some(Box::new(json!({})));
        status
    }

    /// The client wants the object as something it cannot be shown as.
    pub fn not_acceptable() -> Self {
        let text = format!(
            "only the following media types are accepted: {}",
            OBJECT_TYPES.join(", ")
        );
        Self::new(406, "NotAcceptable", text)
    }

    /// The client accepts no media type there is.
    pub fn no_such_form() -> Self {
        let text = format!(
            "406: Not Acceptable\n\nAvailable representations: {}",
            OBJECT_TYPES.join(", ")
        );
        let mut status = Self::new(406, "NotAcceptable", text);
        status.details = Some(Box::new(json!({})));
        status
    }

    /// A patch of a built-in kind in a form that is no patch.
    pub fn no_such_patch() -> Self {
        let mut status = Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
        status.details = Some(Box::new(json!({})));
        status
    }

    pub fn already_exists(subject: &Subject<'_>) -> Self {
        let text = format!(
            "{} \"{}\" already exists",
            subject.qualified(),
            subject.name
        );
        Self::new(409, "AlreadyExists", text).about(subject)
    }

    pub fn name_generation_exhausted(subject: &Subject<'_>) -> Self {
        let mut status = Self::already_exists(subject);
        status.message = format!(
            "{}, the server was not able to generate a unique name for the object",
            status.message
        );
        status
    }

    pub fn conflict(subject: &Subject<'_>, why: &str) -> Self {
        let text = format!(
            "Operation cannot be fulfilled on {} \"{}\": {why}",
            subject.qualified(),
            subject.name
        );
        Self::new(409, "Conflict", text).about(subject)
    }

    /// The object changed between the client's read and its write.
    pub fn modified(subject: &Subject<'_>) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Server-side apply refused: another manager owns fields.
    pub fn apply_conflict(causes: &[Value], message: String) -> Self {
        let mut status = Self::new(409, "Conflict", message);
        status.details = Some(Box::new(json!({"causes": causes})));
        status
    }

    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// The client took too long to send its request.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(408, "Timeout", message)
    }

    pub fn unsupported_media(accepted: &[&str]) -> Self {
        let text = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", text)
    }

    /// `subject.resource` is replaced by the kind: that is how Kubernetes words validation errors.
    pub fn invalid(subject: &Subject<'_>, errors: &[FieldError]) -> Self {
        let qualified = if subject.group.is_empty() {
            subject.kind.to_owned()
        } else {
            format!("{}.{}", subject.kind, subject.group)
        };
        let text = format!(
            "{qualified} \"{}\" is invalid: {}",
            subject.name,
            crate::schema::aggregate(errors)
        );
        let mut details = subject.details();
        if !subject.kind.is_empty() {
            details.insert("kind".into(), subject.kind.into());
        }
        if subject.name.is_empty() {
            details.shift_remove("name");
        }
        details.insert(
            "causes".into(),
            errors.iter().map(FieldError::cause).collect(),
        );
        let mut status = Self::new(422, "Invalid", text);
        status.details = Some(Box::new(Value::Object(details)));
        status
    }

    /// A request that is understood and cannot be carried out (a failed JSON patch test).
    pub fn unprocessable(message: impl Into<String>) -> Self {
        let mut status = Self::new(422, "Invalid", message);
        status.details = Some(Box::new(json!({})));
        status
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        let mut status = Self::new(429, "TooManyRequests", message);
        if retry_after > 0 {
            status.details = Some(Box::new(json!({"retryAfterSeconds": retry_after})));
        }
        status
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = format!("Internal error occurred: {message}");
        let mut status = Self::new(500, "InternalError", text);
        status.details = Some(Box::new(
            json!({"causes": [{"message": message.to_string()}]}),
        ));
        status
    }

    /// A failure Kubernetes gives no reason for.
    pub fn plain_failure(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(501, "NotImplemented", message)
    }

    /// The client asks for a revision the server has not reached.
    pub fn revision_too_large(asked: u64, current: u64) -> Self {
        let text = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut status = Self::new(504, "Timeout", text);
        status.details = Some(Box::new(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        })));
        status
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = (**details).clone();
        }
        status["code"] = self.code.into();
        if let Some(next) = &self.next {
            status["metadata"]["continue"] = (**next).into();
        }
        status
    }
}

/// The `Status` that answers a successful deletion.
pub fn deleted(subject: &Subject<'_>, uid: &str) -> Value {
    let mut details = subject.details();
    details.insert("uid".into(), uid.into());
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
