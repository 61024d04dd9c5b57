//! Money in a spec: US dollars as a number or as text, read as an exact decimal.

use std::borrow::Cow;
use std::str::FromStr;

use rust_decimal::Decimal;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Nobody pays more than this, in dollars: a larger number is a typo.
const MOST: i64 = 1_000_000;

/// A price as somebody wrote it. Reading it never fails, so that an object with a bad one can be told so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Price(pub Value);

impl Price {
    /// The exact number, or why it is none.
    pub fn decimal(&self) -> Result<Decimal, String> {
        let text = match &self.0 {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.trim().to_owned(),
            other => return Err(format!("{other} is not a price such as 2.50")),
        };
        let number = Decimal::from_str(&text).or_else(|_| Decimal::from_scientific(&text));
        let number = number.map_err(|_| format!("'{text}' is not a price such as 2.50"))?;
        if number <= Decimal::ZERO {
            return Err(format!("{text} is not above zero"));
        }
        if number > Decimal::from(MOST) {
            return Err(format!("{text} is more than {MOST} dollars"));
        }
        Ok(number)
    }
}

impl JsonSchema for Price {
    fn schema_name() -> Cow<'static, str> {
        "Price".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A schema of Kubernetes cannot say "number or text"; what it lets through is judged by the controller.
        json_schema!({"x-kubernetes-preserve-unknown-fields": true})
    }
}

/// The schema of an optional price: absent is absent, and null is not kept.
pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
    Price::json_schema(generator)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_and_texts_are_exact_decimals() {
        for (written, exact) in [
            (json!(0.25), "0.25"),
            (json!(10.0), "10.0"),
            (json!(3), "3"),
            (json!("0.1"), "0.1"),
            (json!(" 2.50 "), "2.50"),
        ] {
            let exact = Decimal::from_str(exact).expect("a decimal");
            assert_eq!(Price(written).decimal(), Ok(exact));
        }
    }

    #[test]
    fn what_is_no_price_is_told_in_words() {
        for (written, word) in [
            (json!(-1), "above zero"),
            (json!(0), "above zero"),
            (json!("cheap"), "cheap"),
            (json!(true), "true"),
            (json!(1e12), "more than"),
            (json!("NaN"), "NaN"),
        ] {
            let said = Price(written).decimal().expect_err("no price");
            assert!(said.contains(word), "{said}");
        }
    }
}
