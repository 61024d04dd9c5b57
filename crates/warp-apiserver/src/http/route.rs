//! Paths: which of them means what.

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Resource(Target),
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1`, `/apis/GROUP/VERSION`
    Resources(String, String),
    /// `/openapi/v2`.
    Swagger,
    /// `/openapi/v3` and below; the document's path (`api/v1`, `apis/apps/v1`).
    OpenApi(Option<String>),
    Version,
    /// `/livez`, `/readyz`, `/healthz` and checks below them.
    Health(String),
    Metrics,
    /// `/backup`: everything there is, as one file.
    Backup,
    /// `/`
    Root,
    Unknown,
}

/// A resource path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// The old `/watch/` form of the path.
    pub(crate) watch: bool,
}

impl Route {
    pub(crate) fn parse(path: &str) -> Self {
        let path = path.trim_matches('/');
        if path.is_empty() {
            return Self::Root;
        }
        let decoded: Option<Vec<String>> = path.split('/').map(percent_decode).collect();
        // Whoever guards some paths by their text must not be got around by writing them differently.
        let Some(decoded) = decoded.filter(|parts| parts.iter().all(|part| !part.is_empty()))
        else {
            return Self::Unknown;
        };
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::Resources((*group).to_owned(), (*version).to_owned()),
            ["openapi", "v2"] => Self::Swagger,
            ["openapi", "v3"] => Self::OpenApi(None),
            ["openapi", "v3", rest @ ..] => Self::OpenApi(Some(rest.join("/"))),
            ["version"] => Self::Version,
            ["metrics"] => Self::Metrics,
            ["backup"] => Self::Backup,
            ["livez" | "readyz" | "healthz", ..] => Self::Health(parts.join("/")),
            ["api", version, rest @ ..] => resource("", version, rest),
            ["apis", group, version, rest @ ..] => resource(group, version, rest),
            _ => Self::Unknown,
        }
    }

    /// What metrics call a path that is not a resource's.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::CoreVersions | Self::Groups | Self::Group(_) | Self::Resources(..) => "discovery",
            Self::OpenApi(_) | Self::Swagger => "openapi",
            _ => "other",
        }
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Route {
    let (watch, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        rest => (false, rest),
    };
    let text = |part: &str| Some(part.to_owned());
    let mut target = Target {
        group: group.to_owned(),
        version: version.to_owned(),
        watch,
        ..Target::default()
    };
    match rest {
        // Namespaces are resources themselves, with their own subresources.
        ["namespaces"] => "namespaces".clone_into(&mut target.resource),
        ["namespaces", name] => {
            "namespaces".clone_into(&mut target.resource);
            target.name = text(name);
        }
        ["namespaces", name, sub @ ("status" | "finalize")] => {
            "namespaces".clone_into(&mut target.resource);
            target.name = text(name);
            target.subresource = text(sub);
        }
        ["namespaces", namespace, resource] => {
            target.namespace = text(namespace);
            (*resource).clone_into(&mut target.resource);
        }
        ["namespaces", namespace, resource, name] => {
            target.namespace = text(namespace);
            (*resource).clone_into(&mut target.resource);
            target.name = text(name);
        }
        ["namespaces", namespace, resource, name, sub] => {
            target.namespace = text(namespace);
            (*resource).clone_into(&mut target.resource);
            target.name = text(name);
            target.subresource = text(sub);
        }
        [resource] => (*resource).clone_into(&mut target.resource),
        [resource, name] => {
            (*resource).clone_into(&mut target.resource);
            target.name = text(name);
        }
        [resource, name, sub] => {
            (*resource).clone_into(&mut target.resource);
            target.name = text(name);
            target.subresource = text(sub);
        }
        _ => return Route::Unknown,
    }
    Route::Resource(target)
}

/// `None` when the escapes or the resulting text are malformed.
pub(crate) fn percent_decode(part: &str) -> Option<String> {
    if !part.contains('%') {
        return Some(part.to_owned());
    }
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            out.push(u8::try_from(value).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_an_empty_part_is_nobodys() {
        for path in ["//api//v1", "/api//v1/secrets", "/apis/apps//deployments"] {
            assert!(matches!(Route::parse(path), Route::Unknown), "{path}");
        }
        assert!(matches!(Route::parse("/"), Route::Root));
        assert!(matches!(Route::parse("/api/v1/"), Route::Resources(..)));
        let pods = Route::parse("/api/v1/namespaces/default/pods/");
        assert!(matches!(pods, Route::Resource(target) if target.resource == "pods"));
    }
}
