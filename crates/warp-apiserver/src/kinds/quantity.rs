//! Resource quantities: `500m`, `1Gi`, `2e3`.
//!
//! Exact arithmetic in units of 10⁻⁹, which is the precision Kubernetes keeps.

use std::cmp::Ordering;
use std::fmt;

/// A parsed quantity. Ordering and equality are by value: `1000m` equals `1`.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

const NANO: i128 = 1_000_000_000;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantityError {
    #[error(
        "quantities must match the regular expression \
         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
    };

    pub fn from_whole(value: i64) -> Self {
        Self {
            nanos: i128::from(value) * NANO,
            format: Format::DecimalSi,
        }
    }

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            None => return Err(QuantityError::Format),
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
        };
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        let (format, multiplier, exponent) = parse_suffix(suffix)?;
        let nanos = scale(whole, fraction, multiplier, exponent).ok_or(QuantityError::Format)?;
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }

    /// The number a JSON value stands for: quantities may be written as numbers too.
    pub fn of(value: &serde_json::Value) -> Option<Self> {
        match value {
            serde_json::Value::String(text) => Self::parse(text).ok(),
            serde_json::Value::Number(number) => Self::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it has no fractional part.
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The value rounded up to a whole number.
    pub fn ceil(self) -> i64 {
        let whole = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) > 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// Rounded away from zero to thousandths.
    #[must_use]
    pub fn round_up_to_milli(self) -> Self {
        let step = NANO / 1000;
        let rest = self.nanos % step;
        let nanos = match rest.signum() {
            0 => self.nanos,
            sign => self.nanos - rest + sign * step,
        };
        Self { nanos, ..self }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 {
            other.format
        } else {
            self.format
        };
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
            format,
        }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_sub(other.nanos),
            format: self.format,
        }
    }

    /// The canonical text: what Kubernetes writes back.
    pub fn canonical(self) -> String {
        self.to_string()
    }
}

fn parse_suffix(suffix: &str) -> Result<(Format, i128, i32), QuantityError> {
    let binary = |power: u32| Ok((Format::BinarySi, 1i128 << (10 * power), 0));
    let decimal = |exponent: i32| Ok((Format::DecimalSi, 1, exponent));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let digits = suffix
                .strip_prefix(['e', 'E'])
                .ok_or(QuantityError::Suffix)?;
            let exponent: i32 = digits.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((Format::DecimalExponent, 1, exponent))
        }
    }
}

/// `whole.fraction × multiplier × 10^exponent` in nanos, rounded up, capped at the largest value.
fn scale(whole: &str, fraction: &str, multiplier: i128, exponent: i32) -> Option<i128> {
    const CAP: i128 = i64::MAX as i128 * NANO;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let power = 9 + exponent - i32::try_from(fraction.len()).ok()?;
    if digits.len() > 30 || i64::from(power) + i64::try_from(digits.len()).ok()? > 40 {
        return Some(CAP);
    }
    let mantissa = digits.parse::<i128>().ok()?.checked_mul(multiplier);
    let Some(mantissa) = mantissa else {
        return Some(CAP);
    };
    let value = if power >= 0 {
        10i128
            .checked_pow(power.unsigned_abs())
            .and_then(|p| mantissa.checked_mul(p))
    } else {
        match 10i128.checked_pow(power.unsigned_abs()) {
            Some(divisor) => Some((mantissa + divisor - 1) / divisor),
            None => Some(1),
        }
    };
    Some(value.unwrap_or(CAP).min(CAP))
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        match self.format {
            // Small or fractional binary values fall back to decimal form.
            Format::BinarySi if self.is_whole() && self.nanos.abs() / NANO >= 1024 => {
                let mut value = self.nanos / NANO;
                let mut unit = 0;
                while value % 1024 == 0 && unit < 6 {
                    value /= 1024;
                    unit += 1;
                }
                write!(
                    f,
                    "{value}{}",
                    ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][unit]
                )
            }
            Format::BinarySi | Format::DecimalSi => {
                let (value, unit) = thousands(self.nanos);
                write!(
                    f,
                    "{value}{}",
                    ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][unit]
                )
            }
            Format::DecimalExponent => {
                let (value, unit) = thousands(self.nanos);
                let exponent = i32::try_from(unit).unwrap_or_default() * 3 - 9;
                if exponent == 0 {
                    write!(f, "{value}")
                } else {
                    write!(f, "{value}e{exponent}")
                }
            }
        }
    }
}

fn thousands(nanos: i128) -> (i128, usize) {
    let (mut value, mut unit) = (nanos, 0);
    while value % 1000 == 0 && unit < 9 {
        value /= 1000;
        unit += 1;
    }
    (value, unit)
}
