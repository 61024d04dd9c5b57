//! Who a request acts as, what it wants to do, and whether that is allowed: before anything of it is
//! looked at. The words of a refusal are kube-apiserver's.

use http::{HeaderMap, Method};

use super::options::Query;
use super::route::{Route, Target, percent_decode};
use super::{Api, selector};
use crate::auth::rbac::{Action, On};
use crate::auth::{
    ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User, account_groups, account_name, account_of,
};
use crate::codec::status::{Status, Subject};
use crate::registry::name::path_segment;

const AS_USER: &str = "impersonate-user";
const AS_GROUP: &str = "impersonate-group";
const AS_UID: &str = "impersonate-uid";
const AS_EXTRA: &str = "impersonate-extra-";
/// These run something in a pod: reading them means that too.
const STREAMS: [&str; 3] = ["exec", "attach", "portforward"];

/// One part of somebody a request wants to act as.
#[derive(Debug, Default)]
struct Mask {
    kind: &'static str,
    group: &'static str,
    resource: &'static str,
    /// The key of an extra value.
    key: String,
    namespace: String,
    name: String,
}

impl Mask {
    /// As Go prints the reference it makes of it.
    fn told(&self) -> String {
        let version = if self.group.is_empty() {
            String::new()
        } else {
            format!("{}/v1", self.group)
        };
        let Self {
            kind,
            namespace,
            name,
            key,
            ..
        } = self;
        format!("{{{kind} {namespace} {name}  {version}  {key}}}")
    }
}

fn values(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Status> {
    let all = headers.get_all(name).into_iter();
    all.map(|value| {
        let text = std::str::from_utf8(value.as_bytes()).map(str::to_owned);
        text.map_err(|_| Status::bad_request(format!("the header {name} is not UTF-8 text")))
    })
    .collect()
}

fn masks(headers: &HeaderMap) -> Result<Vec<Mask>, Status> {
    let mut masks = Vec::new();
    let user = values(headers, AS_USER)?.into_iter().next();
    let user = user.filter(|name| !name.is_empty());
    if let Some(user) = &user {
        masks.push(match account_of(user) {
            Some((namespace, name)) => Mask {
                kind: "ServiceAccount",
                resource: "serviceaccounts",
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..Mask::default()
            },
            None => Mask {
                kind: "User",
                resource: "users",
                name: user.clone(),
                ..Mask::default()
            },
        });
    }
    for name in values(headers, AS_GROUP)? {
        masks.push(Mask {
            kind: "Group",
            resource: "groups",
            name,
            ..Mask::default()
        });
    }
    for header in headers.keys() {
        let Some(key) = header.as_str().strip_prefix(AS_EXTRA) else {
            continue;
        };
        let key = percent_decode(key).unwrap_or_else(|| key.to_owned());
        for name in values(headers, header.as_str())? {
            masks.push(Mask {
                kind: "UserExtra",
                group: "authentication.k8s.io",
                resource: "userextras",
                key: key.clone(),
                name,
                ..Mask::default()
            });
        }
    }
    let uid = values(headers, AS_UID)?.into_iter().next();
    if let Some(name) = uid.filter(|uid| !uid.is_empty()) {
        masks.push(Mask {
            kind: "UID",
            group: "authentication.k8s.io",
            resource: "uids",
            name,
            ..Mask::default()
        });
    }
    if user.is_none() && !masks.is_empty() {
        let told: Vec<String> = masks.iter().map(Mask::told).collect();
        return Err(Status::bad_request(format!(
            "requested [{}] without impersonating a user",
            told.join(" ")
        )));
    }
    Ok(masks)
}

/// The user a request acts as once every part was allowed.
fn masked(masks: Vec<Mask>) -> User {
    let mut user = User {
        name: String::new(),
        groups: Vec::new(),
        uid: String::new(),
        extra: std::collections::BTreeMap::new(),
    };
    let grouped = masks.iter().any(|mask| mask.kind == "Group");
    for mask in masks {
        match mask.kind {
            "ServiceAccount" => {
                user.name = account_name(&mask.namespace, &mask.name);
                if !grouped {
                    user.groups = account_groups(&mask.namespace);
                    user.groups.retain(|group| group != AUTHENTICATED);
                }
            }
            "User" => user.name = mask.name,
            "Group" => user.groups.push(mask.name),
            "UID" => user.uid = mask.name,
            _ => user.extra.entry(mask.key).or_default().push(mask.name),
        }
    }
    let has = |name: &str| user.groups.iter().any(|group| group == name);
    if user.name == ANONYMOUS {
        if !has(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
    } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// What a request wants, owned: the words come from different places.
#[derive(Debug)]
enum Wanted {
    Resource {
        verb: &'static str,
        target: Target,
        namespace: String,
        name: String,
    },
    Path {
        verb: String,
        path: String,
    },
}

impl Wanted {
    fn of(method: &Method, route: &Route, path: &str, query: &str) -> Self {
        let target = match route {
            Route::Resource(target) => Some(target.clone()),
            Route::Unknown => shortened(path),
            _ => None,
        };
        let Some(target) = target else {
            return Self::Path {
                verb: method.as_str().to_ascii_lowercase(),
                path: percent_decode(path).unwrap_or_else(|| path.to_owned()),
            };
        };
        let query = Query::parse(query);
        let mut name = target.name.clone().unwrap_or_default();
        let reads = matches!(*method, Method::GET | Method::HEAD);
        let verb = match *method {
            _ if reads && target.watch => "watch",
            _ if reads && target.name.is_some() => "get",
            _ if reads => {
                // A list of one object by its name is as good as getting it.
                name = selector::exact_name(query.get("fieldSelector"))
                    .filter(|name| path_segment(name).is_empty())
                    .unwrap_or_default();
                if query.flag("watch") { "watch" } else { "list" }
            }
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if target.name.is_none() => "deletecollection",
            Method::DELETE => "delete",
            _ => "",
        };
        // A namespace is in itself.
        let namespace = match &target.namespace {
            Some(namespace) => namespace.clone(),
            None if target.resource == "namespaces" => target.name.clone().unwrap_or_default(),
            None => String::new(),
        };
        Self::Resource {
            verb,
            target,
            namespace,
            name,
        }
    }

    fn action(&self) -> Action<'_> {
        match self {
            Self::Resource {
                verb,
                target,
                namespace,
                name,
            } => Action::Resource(On {
                verb,
                group: &target.group,
                resource: &target.resource,
                subresource: target.subresource.as_deref().unwrap_or_default(),
                namespace,
                name,
            }),
            Self::Path { verb, path } => Action::Path { verb, path },
        }
    }
}

/// The resource in a path that goes on below it (`…/pods/p/proxy/x`): nothing is served there, but
/// whoever has no right to know hears that first.
fn shortened(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let root = match *parts.first()? {
        "api" => 2,
        "apis" => 3,
        _ => return None,
    };
    let below = match *parts.get(root)? {
        "namespaces" => 5,
        _ => 3,
    };
    let kept = parts.get(..root + below)?;
    match Route::parse(&kept.join("/")) {
        Route::Resource(target) => Some(target),
        _ => None,
    }
}

/// The refusal of an action.
fn forbidden(user: &User, action: &Action<'_>, reason: &str) -> Status {
    let (message, subject) = match action {
        Action::Path { verb, path } => {
            let nothing = Subject {
                group: "",
                resource: "",
                kind: "",
                name: "",
            };
            (
                format!("User {:?} cannot {verb} path {path:?}", user.name),
                nothing,
            )
        }
        Action::Resource(on) => {
            let resource = match on.subresource {
                "" => on.resource.to_owned(),
                sub => format!("{}/{sub}", on.resource),
            };
            let place = match on.namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let subject = Subject {
                group: on.group,
                resource: on.resource,
                kind: on.resource,
                name: on.name,
            };
            (
                format!(
                    "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
                    user.name, on.verb, on.group
                ),
                subject,
            )
        }
    };
    // No error may look like HTML.
    let mut message = message
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    Status::forbidden(&subject, &message)
}

impl Api {
    /// Refuses what a user may not do.
    pub(super) fn require(&self, user: &User, action: &Action<'_>) -> Result<(), Status> {
        if user.is_master() {
            return Ok(());
        }
        let verdict = self.authorizer.judge(user, action);
        if verdict.allowed {
            return Ok(());
        }
        Err(forbidden(user, action, &verdict.reason))
    }

    /// The user a request acts as: its author, or whom the author may impersonate.
    pub(super) fn acting(&self, author: User, headers: &HeaderMap) -> Result<User, Status> {
        let masks = masks(headers)?;
        if masks.is_empty() {
            return Ok(author);
        }
        for mask in &masks {
            let action = Action::Resource(On {
                verb: "impersonate",
                group: mask.group,
                resource: mask.resource,
                subresource: &mask.key,
                namespace: &mask.namespace,
                name: &mask.name,
            });
            self.require(&author, &action)?;
        }
        Ok(masked(masks))
    }

    /// Refuses a request its user may not make.
    pub(super) fn authorize<B>(
        &self,
        user: &User,
        request: &http::Request<B>,
        route: &Route,
    ) -> Result<(), Status> {
        if user.is_master() {
            return Ok(());
        }
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let wanted = Wanted::of(request.method(), route, uri.path(), query);
        let action = wanted.action();
        self.require(user, &action)?;
        match action {
            Action::Resource(on)
                if on.verb == "get"
                    && on.group.is_empty()
                    && on.resource == "pods"
                    && STREAMS.contains(&on.subresource) =>
            {
                self.require(
                    user,
                    &Action::Resource(On {
                        verb: "create",
                        ..on
                    }),
                )
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(method: &Method, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let wanted = Wanted::of(method, &Route::parse(path), path, query);
        forbidden(&User::account("ns", "a"), &wanted.action(), "").message
    }

    #[test]
    fn what_a_request_wants_is_told_in_the_words_of_a_real_server() {
        let who = "User \"system:serviceaccount:ns:a\" cannot";
        for (method, uri, wanted) in [
            (
                Method::GET,
                "/api/v1/namespaces/default/pods",
                format!(
                    "pods is forbidden: {who} list resource \"pods\" in API group \"\" in the namespace \"default\""
                ),
            ),
            (
                Method::GET,
                "/apis/batch/v1/jobs?watch=1",
                format!(
                    "jobs.batch is forbidden: {who} watch resource \"jobs\" in API group \"batch\" at the cluster scope"
                ),
            ),
            (
                Method::GET,
                "/api/v1/namespaces/x",
                format!(
                    "namespaces \"x\" is forbidden: {who} get resource \"namespaces\" in API group \"\" in the namespace \"x\""
                ),
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/x/pods",
                format!(
                    "pods is forbidden: {who} deletecollection resource \"pods\" in API group \"\" in the namespace \"x\""
                ),
            ),
            (
                Method::GET,
                "/api/v1/namespaces/x/pods/p/log",
                format!(
                    "pods \"p\" is forbidden: {who} get resource \"pods/log\" in API group \"\" in the namespace \"x\""
                ),
            ),
            (
                Method::POST,
                "/api/v1/namespaces/x/pods/p/proxy/a/b",
                format!(
                    "pods \"p\" is forbidden: {who} create resource \"pods/proxy\" in API group \"\" in the namespace \"x\""
                ),
            ),
            (
                Method::GET,
                "/api/v1/namespaces/x/secrets?fieldSelector=metadata.name%3Ds",
                format!(
                    "secrets \"s\" is forbidden: {who} list resource \"secrets\" in API group \"\" in the namespace \"x\""
                ),
            ),
            (
                Method::GET,
                "/metrics",
                format!("forbidden: {who} get path \"/metrics\""),
            ),
            (
                Method::POST,
                "/<b>",
                format!("forbidden: {who} post path \"/&lt;b&gt;\""),
            ),
        ] {
            assert_eq!(told(&method, uri), wanted);
        }
    }
}
