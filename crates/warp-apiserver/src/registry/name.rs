//! What may be a name: the checks of RFC 1123 and the texts Kubernetes gives with them.

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let bytes = text.as_bytes();
    bytes.iter().all(|c| inner(*c))
        && bytes.first().is_some_and(|c| *c != b'-')
        && bytes.last().is_some_and(|c| *c != b'-')
}

/// Problems of a name that must be a DNS label (namespaces, most pod-derived names).
pub fn label(name: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !is_label(name) {
        problems.push(LABEL.to_owned());
    }
    problems
}

/// Problems of a name that must be a DNS subdomain: the rule for most kinds.
pub fn subdomain(name: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.len() > 253 {
        problems.push("must be no more than 253 bytes".to_owned());
    }
    if !name.split('.').all(is_label) {
        problems.push(SUBDOMAIN.to_owned());
    }
    problems
}

/// Problems of a name that must be an older DNS label starting with a letter (services).
pub fn label_1035(name: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !is_label(name) || !name.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        problems.push(LABEL_1035.to_owned());
    }
    problems
}

/// Problems of a name that only has to be one path segment (RBAC objects, custom resources' kin).
pub fn path_segment(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    name.chars()
        .find(|c| matches!(c, '/' | '%'))
        .map(|c| vec![format!("may not contain '{c}'")])
        .unwrap_or_default()
}

/// Kubernetes' order of versions: stable before beta before alpha, newer before older, anything
/// else last by name. The greater version is the preferred one.
pub fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    fn parse(version: &str) -> Option<(u64, u64, u64)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let major = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (2, ""),
            tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                (Some(minor), _) => (1, minor),
                (_, Some(minor)) => (0, minor),
                _ => return None,
            },
        };
        let minor = if stage == 2 { 0 } else { minor.parse().ok()? };
        Some((stage, major, minor))
    }
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => std::cmp::Ordering::Greater,
        (None, Some(_)) => std::cmp::Ordering::Less,
        (None, None) => b.cmp(a),
    }
}
