//! Query parameters and the options they make.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::route::percent_decode;
use crate::codec::status::Status;
use crate::schema::{FieldError, Path};

/// The query, decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let decode = |part: &str| percent_decode(&part.replace('+', " ")).unwrap_or_default();
        Self(
            text.split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the flag is there and does not say no: Kubernetes takes every other text for yes.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let text = self.get(name);
        self.has(name) && text != "0" && !text.eq_ignore_ascii_case("false")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        let text = self.get(name);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| {
            Status::bad_request(format!(
                "strconv.ParseInt: parsing {text:?}: invalid syntax"
            ))
        })
    }
}

fn refuse(kind: &str, errors: &[FieldError]) -> Status {
    let subject = crate::codec::status::Subject {
        group: "meta.k8s.io",
        resource: kind,
        kind,
        name: "",
    };
    Status::invalid(&subject, errors)
}

/// How strictly unknown fields are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    Strict,
    Warn,
    Ignore,
}

/// Options of create, update and patch.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: Validation,
    pub(crate) force: bool,
}

impl WriteOptions {
    /// `apply`: the patch is an apply, which needs a manager.
    pub(crate) fn parse(
        query: &Query,
        user_agent: &str,
        kind: &str,
        apply: bool,
    ) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let dry_run = dry_run(query.all("dryRun"), &mut errors);
        let validation = match query.get("fieldValidation") {
            "" | "Warn" => Validation::Warn,
            "Strict" => Validation::Strict,
            "Ignore" => Validation::Ignore,
            other => {
                errors.push(FieldError::not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                ));
                Validation::Warn
            }
        };
        let manager = query.get("fieldManager");
        let path = Path::new("fieldManager");
        if manager.len() > 128 {
            errors.push(FieldError::too_long(&path, 128));
        }
        if let Some(odd) = manager.chars().find(|c| c.is_control()) {
            errors.push(FieldError::invalid(
                &path,
                manager,
                format!("invalid character {odd:?} (at position 0)"),
            ));
        }
        if apply && manager.is_empty() {
            errors.push(FieldError::required(&path, "is required for apply patch"));
        }
        let force = query.get("force");
        if !apply && !force.is_empty() {
            errors.push(FieldError::forbidden(
                &Path::new("force"),
                "may not be specified for non-apply patch",
            ));
        }
        if !errors.is_empty() {
            return Err(refuse(kind, &errors));
        }
        let manager = if manager.is_empty() {
            of_agent(user_agent)
        } else {
            manager.to_owned()
        };
        Ok(Self {
            dry_run,
            manager,
            validation,
            force: query.flag("force"),
        })
    }
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Vec<FieldError>) -> bool {
    let mut dry = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value == "All" {
            dry = true;
        } else {
            let sent = serde_json::json!([value]);
            errors.push(FieldError::not_supported(
                &Path::new("dryRun"),
                sent,
                &["All"],
            ));
        }
    }
    dry
}

/// The name a client goes by when it does not say: its user agent up to the first slash.
fn of_agent(user_agent: &str) -> String {
    let name: String = user_agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    let name: String = name.chars().take(128).collect();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name
    }
}

/// How a list relates to a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The present.
    Now,
    /// This revision or a newer one.
    NotOlder(u64),
    Exactly(u64),
}

/// Options of list and watch.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    pub(crate) limit: usize,
    pub(crate) next: Option<Continue>,
    pub(crate) at: At,
    /// The revision exactly as sent (`""`, `"0"` and a number mean different things to a watch).
    pub(crate) revision: Option<u64>,
    pub(crate) timeout: Option<u64>,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
}

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    /// The revision of the first page; `None` goes on in the present.
    pub(crate) revision: Option<u64>,
    pub(crate) after: String,
}

impl Continue {
    pub(crate) fn encode(&self) -> String {
        let revision = self
            .revision
            .map_or(-1, |revision| i64::try_from(revision).unwrap_or(-1));
        let token = serde_json::json!({
            "v": "meta.k8s.io/v1",
            "rv": revision,
            "start": format!("{}\0", self.after),
        });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        let token: Value = serde_json::from_slice(&bytes).ok()?;
        if token["v"] != "meta.k8s.io/v1" {
            return None;
        }
        let after = token["start"].as_str()?.strip_suffix('\0')?.to_owned();
        let revision = match token["rv"].as_i64()? {
            0 => return None,
            negative if negative < 0 => None,
            revision => Some(u64::try_from(revision).ok()?),
        };
        Some(Self { revision, after })
    }
}

/// A revision as sent; the error is what is wrong with it.
pub(crate) fn parse_revision(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        )
    })
}

impl ListOptions {
    pub(crate) fn parse(query: &Query, watch: bool) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let version = query.get("resourceVersion");
        let matching = query.get("resourceVersionMatch");
        let path = Path::new("resourceVersionMatch");
        let token = query.get("continue");
        let initial = query.get("sendInitialEvents");
        let initial_events = (!initial.is_empty()).then(|| query.flag("sendInitialEvents"));
        if watch {
            watch_rules(query, matching, initial_events, &mut errors);
        } else {
            if !matching.is_empty() {
                if version.is_empty() {
                    errors.push(FieldError::forbidden(
                        &path,
                        "resourceVersionMatch is forbidden unless resourceVersion is provided",
                    ));
                }
                if !token.is_empty() {
                    errors.push(FieldError::forbidden(
                        &path,
                        "resourceVersionMatch is forbidden when continue is provided",
                    ));
                }
                if !matches!(matching, "Exact" | "NotOlderThan") {
                    errors.push(FieldError::not_supported(
                        &path,
                        matching,
                        &["Exact", "NotOlderThan", ""],
                    ));
                }
                if matching == "Exact" && version == "0" {
                    errors.push(FieldError::forbidden(
                        &path,
                        "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                    ));
                }
            }
            if initial_events.is_some() {
                errors.push(FieldError::forbidden(
                    &Path::new("sendInitialEvents"),
                    "sendInitialEvents is forbidden for list",
                ));
            }
        }
        if !errors.is_empty() {
            return Err(refuse("ListOptions", &errors));
        }
        let revision = parse_revision(version).map_err(|problem| {
            if watch {
                Status::plain_failure(problem)
            } else {
                Status::bad_request(format!("invalid resource version: {problem}"))
            }
        })?;
        let next = if token.is_empty() {
            None
        } else {
            let next = Continue::decode(token).ok_or_else(|| {
                Status::bad_request(
                    "invalid continue token: continue key is not valid: it was not made by this server",
                )
            })?;
            if revision.is_some_and(|revision| revision != 0) && !watch {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            Some(next)
        };
        let limit = query.number("limit")?.unwrap_or(0);
        let limit = usize::try_from(limit).unwrap_or(0);
        let at = match (revision, matching) {
            (None | Some(0), _) => At::Now,
            (Some(revision), "Exact") => At::Exactly(revision),
            (Some(revision), "") if limit > 0 => At::Exactly(revision),
            (Some(revision), _) => At::NotOlder(revision),
        };
        let timeout = query
            .number("timeoutSeconds")?
            .and_then(|t| u64::try_from(t).ok());
        Ok(Self {
            limit,
            next,
            at,
            revision,
            timeout,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events,
        })
    }
}

fn watch_rules(
    query: &Query,
    matching: &str,
    initial_events: Option<bool>,
    errors: &mut Vec<FieldError>,
) {
    let path = Path::new("resourceVersionMatch");
    if initial_events.is_some() && matching != "NotOlderThan" {
        errors.push(FieldError::forbidden(
            &path,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
        if !matching.is_empty() {
            let supported = &["NotOlderThan"];
            errors.push(FieldError::not_supported(&path, matching, supported));
        }
    }
    if !matching.is_empty() && initial_events.is_none() {
        errors.push(FieldError::forbidden(
            &path,
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    if initial_events == Some(true) && !query.get("continue").is_empty() {
        errors.push(FieldError::forbidden(
            &path,
            "continue is forbidden for watch",
        ));
    }
}

/// Options of delete, from the body and the query.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) revision: Option<String>,
    pub(crate) dry_run: bool,
    /// As sent, for admission.
    pub(crate) sent: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl DeleteOptions {
    pub(crate) fn parse(body: Option<&Value>, query: &Query) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let empty = Value::Null;
        let body = body.unwrap_or(&empty);
        let text = |name: &str| match body[name].as_str() {
            Some(text) => text,
            None => query.get(name),
        };
        let grace = match body["gracePeriodSeconds"].as_i64() {
            Some(grace) => Some(grace),
            None => query.number("gracePeriodSeconds")?,
        };
        let orphan = body["orphanDependents"].as_bool().or_else(|| {
            let text = query.get("orphanDependents");
            (!text.is_empty()).then(|| query.flag("orphanDependents"))
        });
        let policy = text("propagationPolicy");
        if orphan.is_some() && !policy.is_empty() {
            errors.push(FieldError::invalid(
                &Path::new("propagationPolicy"),
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match (policy, orphan) {
            ("", None) => None,
            ("", Some(true)) | ("Orphan", _) => Some(Propagation::Orphan),
            ("", Some(false)) | ("Background", _) => Some(Propagation::Background),
            ("Foreground", _) => Some(Propagation::Foreground),
            (other, _) => {
                errors.push(FieldError::not_supported(
                    &Path::new("propagationPolicy"),
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        let listed = body["dryRun"].as_array().cloned().unwrap_or_default();
        let dry = listed
            .iter()
            .filter_map(Value::as_str)
            .chain(query.all("dryRun"));
        let dry_run = dry_run(dry, &mut errors);
        if !errors.is_empty() {
            return Err(refuse("DeleteOptions", &errors));
        }
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            grace,
            propagation,
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            dry_run,
            sent: body.clone(),
        })
    }
}
