//! The string formats a real server checks, by their normalised name. Unknown formats are ignored,
//! as Kubernetes ignores them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?([0-9a-f])[0-9a-f]{3}-?([0-9a-f])[0-9a-f]{3}-?[0-9a-f]{12}$",
    )
});
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    compile(r"(?i)^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?$")
});
static EMAIL: LazyLock<Regex> = LazyLock::new(|| compile(r"^[^@\s<>]+@[^@\s<>]+$"));
static HEX_COLOR: LazyLock<Regex> =
    LazyLock::new(|| compile("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*";
    compile(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static SSN: LazyLock<Regex> = LazyLock::new(|| compile(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"));
static MAC: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        "(?i)^([0-9a-f]{2}([:-][0-9a-f]{2}){5}|[0-9a-f]{2}([:-][0-9a-f]{2}){7}|[0-9a-f]{4}(\\.[0-9a-f]{4}){2})$",
    )
});
static BSON: LazyLock<Regex> = LazyLock::new(|| compile("(?i)^[0-9a-f]{24}$"));
static DATE: LazyLock<Regex> = LazyLock::new(|| compile(r"^\d{4}-\d{2}-\d{2}$"));
static DURATION: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+|\d+\s*(nanoseconds?|nanos?|nsec|ns|microseconds?|micros?|us|milliseconds?|millis?|ms|seconds?|s|minutes?|m|hours?|h|days?|d|weeks?|w))$",
    )
});
static CARD: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"^(4[0-9]{12}([0-9]{3})?|5[1-5][0-9]{14}|6(011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(0[0-5]|[68][0-9])[0-9]{11}|(2131|1800|35\d{3})\d{11})$",
    )
});

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the format patterns are constants")
}

/// Whether `value` has `format`; `None` when the format is not one that is checked.
pub(super) fn matches(format: &str, value: &str) -> Option<bool> {
    let normalised: String = format.chars().filter(|c| *c != '-').collect();
    Some(match normalised.as_str() {
        "bsonobjectid" => BSON.is_match(value),
        "uri" => is_request_uri(value),
        "email" => EMAIL.is_match(value),
        "hostname" => value.len() <= 255 && HOSTNAME.is_match(value),
        "ipv4" => value.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => value.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(value),
        "mac" => MAC.is_match(value),
        "uuid" => UUID.is_match(value),
        "uuid3" => is_uuid(value, '3', false),
        "uuid4" => is_uuid(value, '4', true),
        "uuid5" => is_uuid(value, '5', true),
        "isbn" => is_isbn10(value) || is_isbn13(value),
        "isbn10" => is_isbn10(value),
        "isbn13" => is_isbn13(value),
        "creditcard" => {
            let digits: String = value.chars().filter(char::is_ascii_digit).collect();
            CARD.is_match(&digits)
        }
        "ssn" => SSN.is_match(value),
        "hexcolor" => HEX_COLOR.is_match(value),
        "rgbcolor" => RGB_COLOR.is_match(value),
        "byte" => is_base64(value),
        "password" => true,
        "date" => DATE.is_match(value) && value.parse::<jiff::civil::Date>().is_ok(),
        "duration" => DURATION.is_match(value),
        "datetime" => is_date_time(value),
        "k8sshortname" => is_label(value),
        "k8slongname" => value.len() <= 253 && value.split('.').all(is_long_part),
        _ => return None,
    })
}

/// Whether values of this format are checked at all.
pub(crate) fn is_known(format: &str) -> bool {
    matches(format, "").is_some()
}

fn is_label(value: &str) -> bool {
    value.len() <= 63 && is_long_part(value)
}

fn is_long_part(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(value.chars().next())
        && edge(value.chars().last())
        && value
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Absolute (`scheme:…`) or rooted (`/…`), as Go's `url.ParseRequestURI` accepts it.
fn is_request_uri(value: &str) -> bool {
    if value.is_empty() || value.chars().any(|c| c.is_ascii_control() || c == ' ') {
        return false;
    }
    if value.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = value.split_once(':') else {
        return false;
    };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.is_empty()
}

fn is_cidr(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    if bits.is_empty() || bits.len() > 3 || (bits.len() > 1 && bits.starts_with('0')) {
        return false;
    }
    let Ok(bits) = bits.parse::<u8>() else {
        return false;
    };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

fn is_uuid(value: &str, version: char, variant: bool) -> bool {
    UUID.captures(value).is_some_and(|parts| {
        parts[1].starts_with(version)
            && (!variant || "89abAB".contains(parts[2].chars().next().unwrap_or(' ')))
    })
}

fn isbn_digits(value: &str) -> Vec<char> {
    value.chars().filter(|c| !"- ".contains(*c)).collect()
}

fn is_isbn10(value: &str) -> bool {
    let digits = isbn_digits(value);
    if digits.len() != 10 {
        return false;
    }
    let mut sum = 0;
    for (i, c) in digits.iter().enumerate() {
        let digit = match c {
            'X' if i == 9 => 10,
            c => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += digit * (10 - u32::try_from(i).unwrap_or_default());
    }
    sum % 11 == 0
}

fn is_isbn13(value: &str) -> bool {
    let digits: Option<Vec<u32>> = isbn_digits(value).iter().map(|c| c.to_digit(10)).collect();
    digits.is_some_and(|digits| {
        let weighted = digits
            .iter()
            .enumerate()
            .map(|(i, d)| if i % 2 == 0 { *d } else { d * 3 });
        digits.len() == 13 && weighted.sum::<u32>() % 10 == 0
    })
}

pub(crate) fn is_base64(value: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .decode(value)
        .is_ok()
}

pub(crate) fn is_date_time(value: &str) -> bool {
    value.len() >= 20
        && matches!(value.as_bytes()[10], b'T' | b't')
        && value.parse::<jiff::Timestamp>().is_ok()
}
