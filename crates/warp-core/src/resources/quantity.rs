//! Kubernetes quantities: `500m`, `1.5Gi`, `2e3`. Exact integer arithmetic; what Kubernetes would
//! refuse is an error here too.

use std::str::FromStr;

use thiserror::Error;

/// A non-rounded amount in billionths, the finest unit Kubernetes keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nano: i128,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    #[error(
        "failed to parse quantity {0:?}: expected digits with an optional suffix such as m, k, Mi or e3"
    )]
    Malformed(String),
    #[error("failed to parse quantity {0:?}: out of range")]
    OutOfRange(String),
}

const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Whole units, rounded away from zero (`Value()` of Kubernetes).
    pub fn value(self) -> Result<i64, QuantityError> {
        self.scaled(NANO)
    }

    /// Thousandths, rounded away from zero (`MilliValue()` of Kubernetes).
    pub fn milli(self) -> Result<i64, QuantityError> {
        self.scaled(NANO / 1000)
    }

    fn scaled(self, unit: i128) -> Result<i64, QuantityError> {
        let magnitude = (self.nano.unsigned_abs()).div_ceil(unit.unsigned_abs());
        let signed = i128::try_from(magnitude)
            .ok()
            .map(|m| m * self.nano.signum());
        signed
            .and_then(|value| i64::try_from(value).ok())
            .ok_or_else(|| QuantityError::OutOfRange(format!("{}n", self.nano)))
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(text.to_owned());
        let range = || QuantityError::OutOfRange(text.to_owned());
        let (sign, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (-1, &text[1..]),
            Some(b'+') => (1, &text[1..]),
            _ => (1, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let scale = Scale::parse(suffix).ok_or_else(malformed)?;
        let mut digits: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits = digits
                .checked_mul(10)
                .and_then(|d| d.checked_add(i128::from(digit - b'0')))
                .ok_or_else(range)?;
        }
        let places = i32::try_from(fraction.len()).map_err(|_| range())?;
        let nano = scale.nano(digits, places).ok_or_else(range)?;
        Ok(Self { nano: sign * nano })
    }
}

/// What the suffix multiplies with: a power of two and a power of ten.
struct Scale {
    binary: u32,
    decimal: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let of = |binary, decimal| Some(Self { binary, decimal });
        match suffix {
            "n" => of(0, -9),
            "u" => of(0, -6),
            "m" => of(0, -3),
            "" => of(0, 0),
            "k" => of(0, 3),
            "M" => of(0, 6),
            "G" => of(0, 9),
            "T" => of(0, 12),
            "P" => of(0, 15),
            "E" => of(0, 18),
            "Ki" => of(10, 0),
            "Mi" => of(20, 0),
            "Gi" => of(30, 0),
            "Ti" => of(40, 0),
            "Pi" => of(50, 0),
            "Ei" => of(60, 0),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                of(0, exponent.parse().ok()?)
            }
        }
    }

    /// `digits · 10^-places`, scaled, in billionths; parts below one billionth round up, as in
    /// Kubernetes.
    fn nano(&self, digits: i128, places: i32) -> Option<i128> {
        if digits == 0 {
            return Some(0);
        }
        let scaled = digits.checked_mul(1_i128.checked_shl(self.binary)?)?;
        let power = self.decimal.checked_add(9)?.checked_sub(places)?;
        if power >= 0 {
            scaled.checked_mul(10_i128.checked_pow(power.unsigned_abs())?)
        } else {
            // Past 10^38 nothing but the rounding is left.
            match 10_i128.checked_pow(power.unsigned_abs()) {
                Some(divisor) => Some(scaled / divisor + i128::from(scaled % divisor != 0)),
                None => Some(1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str) -> i64 {
        text.parse::<Quantity>().unwrap().value().unwrap()
    }

    fn milli(text: &str) -> i64 {
        text.parse::<Quantity>().unwrap().milli().unwrap()
    }

    #[test]
    fn suffixes_mean_what_kubernetes_says() {
        for (text, expected) in [
            ("0", 0),
            ("1", 1),
            ("1k", 1000),
            ("1Ki", 1024),
            ("1.5Gi", 1_610_612_736),
            ("2e3", 2000),
            ("2E3", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            (".5Ki", 512),
            ("5.", 5),
            ("+3", 3),
            ("-3M", -3_000_000),
            ("100m", 1),
            ("1n", 1),
            ("0.0000000001", 1),
            ("5e-1", 1),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        assert_eq!(milli("100m"), 100);
        assert_eq!(milli("1.0005"), 1001);
        assert_eq!(milli("250000u"), 250);
        assert_eq!(milli("2"), 2000);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "-", ".", "1.2.3", "abc", "1 Gi", "1gi", "1e", "1e+", "1KiB", "0x10", "١",
        ] {
            assert!(
                matches!(text.parse::<Quantity>(), Err(QuantityError::Malformed(_))),
                "{text}"
            );
        }
        for text in ["1e60", "999999999999999999999999999999999999999999"] {
            assert!(
                matches!(text.parse::<Quantity>(), Err(QuantityError::OutOfRange(_))),
                "{text}"
            );
        }
        assert!("20E".parse::<Quantity>().unwrap().value().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,12}") {
            let _ = text.parse::<Quantity>().map(|q| (q.value(), q.milli()));
        }

        #[test]
        fn whole_numbers_survive(n in any::<i32>()) {
            prop_assert_eq!(value(&n.to_string()), i64::from(n));
            prop_assert_eq!(milli(&format!("{n}m")), i64::from(n));
            prop_assert_eq!(value(&format!("{n}Mi")), i64::from(n) << 20);
        }
    }
}
