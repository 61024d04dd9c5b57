//! The form of a body as a table: which fields there are, which must be there, and nothing else.

use serde_json::Value;

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Text of at most so many letters.
    Text(usize),
    Whole {
        min: i64,
    },
    Number,
    Flag,
    Texts,
    /// Names to texts.
    Map,
    OneOf(&'static [&'static str]),
    Object(&'static [Field]),
    Objects(&'static [Field]),
    /// Judged elsewhere.
    Any,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    name: &'static str,
    required: bool,
    form: Form,
}

pub(crate) const fn must(name: &'static str, form: Form) -> Field {
    Field {
        name,
        required: true,
        form,
    }
}

pub(crate) const fn may(name: &'static str, form: Form) -> Field {
    Field {
        name,
        required: false,
        form,
    }
}

/// Why `value` is not an object of these fields.
pub(crate) fn check(value: &Value, fields: &[Field]) -> Result<(), String> {
    let Some(object) = value.as_object() else {
        return Err("this is no object".to_owned());
    };
    for name in object.keys() {
        if !fields.iter().any(|field| field.name == name) {
            return Err(format!("there is no field {name}"));
        }
    }
    for field in fields {
        match object.get(field.name) {
            None if field.required => return Err(format!("the field {} is missing", field.name)),
            None => {}
            Some(value) => {
                fits(value, field.form).map_err(|why| format!("{}: {why}", field.name))?;
            }
        }
    }
    Ok(())
}

fn fits(value: &Value, form: Form) -> Result<(), String> {
    let held = match form {
        Form::Any => true,
        Form::Text(most) => value
            .as_str()
            .is_some_and(|text| text.chars().count() <= most),
        Form::Whole { min } => value.as_i64().is_some_and(|number| number >= min),
        Form::Number => value.is_number(),
        Form::Flag => value.is_boolean(),
        Form::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
        Form::Texts => value
            .as_array()
            .is_some_and(|list| list.iter().all(Value::is_string)),
        Form::Map => value
            .as_object()
            .is_some_and(|map| map.values().all(Value::is_string)),
        Form::Object(fields) => return check(value, fields),
        Form::Objects(fields) => {
            let list = value.as_array().ok_or("this is no list")?;
            return list.iter().try_for_each(|item| check(item, fields));
        }
    };
    if held {
        Ok(())
    } else {
        Err(format!("{value} is not {form:?}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_unknown_and_wrong_fields_are_told() {
        const FIELDS: &[Field] = &[
            must("name", Form::Text(3)),
            may(
                "gpu",
                Form::Object(&[must("count", Form::Whole { min: 1 })]),
            ),
        ];
        assert_eq!(
            check(&json!({"name": "abc", "gpu": {"count": 1}}), FIELDS),
            Ok(())
        );
        for wrong in [
            json!({}),
            json!({"name": "abcd"}),
            json!({"name": "a", "more": 1}),
            json!({"name": "a", "gpu": {"count": 0}}),
            json!([]),
        ] {
            assert!(check(&wrong, FIELDS).is_err(), "{wrong}");
        }
    }
}
