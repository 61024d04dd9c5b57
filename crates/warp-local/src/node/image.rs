//! Image names, as a kubelet reads them before it pulls.

/// What a kubelet says of a name nobody can pull by; nothing for a good one.
pub(crate) fn problem(image: &str) -> Option<String> {
    let why = fault(image)?;
    Some(format!(
        "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}"
    ))
}

fn fault(image: &str) -> Option<String> {
    const FORMAT: &str = "invalid reference format";
    const LONGEST: usize = 255;
    let (domain, path) = split_domain(image);
    if image.len() == 64
        && image
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return Some(format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    let repository = path.split(':').next().unwrap_or_default();
    if repository.chars().any(char::is_uppercase) {
        let shown = if domain.is_none() && !path.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        return Some(format!(
            "{FORMAT}: repository name ({shown}) must be lowercase"
        ));
    }
    let (named, digest) = match path.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (path, None),
    };
    let (name, tag) = match named.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (named, None),
    };
    let fits = domain.is_none_or(is_domain)
        && name.split('/').all(is_path_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if !fits {
        return Some(FORMAT.to_owned());
    }
    (name.len() + domain.map_or(0, str::len) > LONGEST)
        .then(|| format!("repository name must not be more than {LONGEST} characters"))
}

/// The registry, if the name begins with one.
fn split_domain(image: &str) -> (Option<&str>, &str) {
    match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            (Some(first), rest)
        }
        _ => (None, image),
    }
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let good = !address.is_empty()
                && address
                    .bytes()
                    .all(|byte| byte.is_ascii_hexdigit() || byte == b':');
            if !good {
                return false;
            }
            return rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let part = |part: &str| {
        let bytes = part.as_bytes();
        !part.is_empty()
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && bytes.first() != Some(&b'-')
            && bytes.last() != Some(&b'-')
    };
    host.split('.').all(part) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lower-case words joined by one dot, one or two underscores, or any number of dashes.
fn is_path_part(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    if !ends.iter().all(|end| end.is_some_and(|byte| word(*byte))) {
        return false;
    }
    bytes.split(|byte| word(*byte)).all(|joint| {
        matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|byte| *byte == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= 128
        && bytes.next().is_some_and(word)
        && bytes.all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hash)) = digest.split_once(':') else {
        return false;
    };
    algorithm
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic())
        && algorithm
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_'))
        && hash.len() >= 32
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_name_is_read_as_a_kubelet_reads_it() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let good = [
            "nginx".to_owned(),
            "nginx:1.2".to_owned(),
            "vllm/vllm-openai:v0.9".to_owned(),
            "registry:5000/team/name__x:tag".to_owned(),
            "localhost/a--b".to_owned(),
            "Registry.Example.com/a".to_owned(),
            "[::1]:5000/a".to_owned(),
            format!("a/b@{digest}"),
            format!("a/b:tag@{digest}"),
        ];
        for name in &good {
            assert_eq!(problem(name), None, "{name}");
        }
        let bad = [
            ("UPPER", "repository name (library/UPPER) must be lowercase"),
            (
                "team/Upper:1",
                "repository name (team/Upper) must be lowercase",
            ),
            ("local://", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a:", "invalid reference format"),
            ("a@sha256:12", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a._b", "invalid reference format"),
            ("https://registry/a", "invalid reference format"),
            ("", "invalid reference format"),
        ];
        for (name, why) in bad {
            let said = problem(name).unwrap_or_default();
            assert!(said.ends_with(why), "{name}: {said}");
            assert!(said.contains("couldn't parse image name"), "{said}");
        }
    }
}
