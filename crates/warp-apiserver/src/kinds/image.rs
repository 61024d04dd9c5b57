//! Image references, as far as defaults need them.

/// `Always` for a moving tag, `IfNotPresent` for a fixed one.
pub(super) fn default_pull_policy(image: &str) -> &'static str {
    if tag(image) == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

/// The tag an image is pulled by: `latest` when neither tag nor digest is given.
fn tag(image: &str) -> Option<&str> {
    if image.is_empty() {
        return None;
    }
    let (name, digest) = match image.split_once('@') {
        Some((name, _)) => (name, true),
        None => (image, false),
    };
    // A colon before a slash is a port.
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => Some(tag),
        None if digest => None,
        None => Some("latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::default_pull_policy;

    #[test]
    fn a_moving_tag_is_always_pulled() {
        let cases = [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("host:5000/nginx", "Always"),
            ("host:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:abcd", "IfNotPresent"),
            ("nginx:latest@sha256:abcd", "Always"),
            ("", "IfNotPresent"),
        ];
        for (image, policy) in cases {
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }
}
