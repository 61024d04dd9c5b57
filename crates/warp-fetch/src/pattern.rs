//! Patterns for names of files, with the meaning Python's `fnmatch` gives them, as the hub's own client does: `*`
//! matches anything, slashes included; a pattern that ends in `/` means everything below.

/// Whether `pattern` matches the whole of `name`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = if pattern.ends_with('/') {
        format!("{pattern}*").chars().collect()
    } else {
        pattern.chars().collect()
    };
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut place) = (0, 0);
    // Where the last star was, and what it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while place < name.len() {
        match step(&pattern, at, name[place]) {
            Step::Star => {
                star = Some((at + 1, place));
                at += 1;
            }
            Step::Takes(next) => {
                at = next;
                place += 1;
            }
            Step::Fails => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    at = after;
                    place = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

enum Step {
    Star,
    Takes(usize),
    Fails,
}

fn step(pattern: &[char], at: usize, letter: char) -> Step {
    match pattern.get(at) {
        Some('*') => Step::Star,
        Some('?') => Step::Takes(at + 1),
        Some('[') => match class(pattern, at, letter) {
            Some((true, next)) => Step::Takes(next),
            // A bracket that is never closed stands for itself.
            None if letter == '[' => Step::Takes(at + 1),
            Some((false, _)) | None => Step::Fails,
        },
        Some(found) if *found == letter => Step::Takes(at + 1),
        _ => Step::Fails,
    }
}

/// Whether `[…]` at `at` contains `letter`, and what comes after it.
fn class(pattern: &[char], at: usize, letter: char) -> Option<(bool, usize)> {
    let inverted = pattern.get(at + 1) == Some(&'!');
    let start = at + 1 + usize::from(inverted);
    // A closing bracket that comes first is a member.
    let end = (start + 1..pattern.len()).find(|place| pattern[*place] == ']')?;
    let members = &pattern[start..end];
    let mut found = false;
    let mut place = 0;
    while place < members.len() {
        if place + 2 < members.len() && members[place + 1] == '-' {
            found |= (members[place]..=members[place + 2]).contains(&letter);
            place += 3;
        } else {
            found |= members[place] == letter;
            place += 1;
        }
    }
    Some((found != inverted, end + 1))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_mean_what_fnmatch_means() {
        for (pattern, name, expected) in [
            ("*.json", "config.json", true),
            ("*.json", "sub/config.json", true),
            ("*.json", "config.jsonl", false),
            ("model-?.bin", "model-1.bin", true),
            ("model-?.bin", "model-12.bin", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[", "[", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("original/", "original/consolidated.pth", true),
            ("original/", "other/original", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
