//! The nearest name to a misspelt one, for every complaint about a name nobody knows.

/// `; did you mean "x"?`, or the list when nothing is near.
pub fn hint<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(text, known.iter().copied()) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => format!("; known are {}", known.join(", ")),
    }
}

/// The known name that `text` most likely stands for.
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = text.to_ascii_lowercase();
    let (far, name) = known
        .into_iter()
        .map(|name| {
            let known = name.to_ascii_lowercase();
            // The beginning of a name is nearer than any other word as short.
            let begins = lower.len() > 2 && known.starts_with(&lower);
            let far = if begins { 1 } else { distance(&lower, &known) };
            (far, name)
        })
        .min()?;
    // A third of the letters may be wrong; a guess further off misleads.
    (far <= text.len().min(9) / 3).then_some(name)
}

/// Edits between two short words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_what_is_near_is_suggested() {
        let known = ["pods", "nodes", "jobs", "gpuworkloads", "services"];
        for (text, near) in [
            ("gpuwrkload", Some("gpuworkloads")),
            ("pdos", None),
            ("pod", Some("pods")),
            ("nods", Some("nodes")),
            ("foo", None),
            ("bars", None),
            ("tenants", None),
            ("x", None),
        ] {
            assert_eq!(nearest(text, known), near, "{text}");
        }
    }
}
