//! JSON patch (RFC 6902) as Kubernetes applies it: `test` with null succeeds on a missing path
//! (controllers' finalizer helpers depend on it) and negative indices count from the end.

use serde_json::Value;

use crate::codec::status::Status;

/// Operations one patch may hold.
const MOST: usize = 10_000;
/// Bytes all copies of one patch may add: a few nested ones would double the object each time.
const MOST_COPIED: usize = 3 << 20;
const REJECTED: &str = "the server rejected our request due to an error in our request";

/// Applies the patch; the object is unchanged when any operation fails.
pub fn apply(object: &mut Value, patch: &Value) -> Result<(), Status> {
    let Some(operations) = patch.as_array() else {
        return Err(Status::bad_request(
            "json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        ));
    };
    if operations.len() > MOST {
        return Err(Status::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MOST}, got {}",
            operations.len()
        )));
    }
    let mut copy = object.clone();
    let mut copied = 0;
    for operation in operations {
        step(&mut copy, operation, &mut copied).ok_or_else(|| Status::unprocessable(REJECTED))?;
    }
    *object = copy;
    Ok(())
}

/// `copied` is what copies have added so far.
fn step(object: &mut Value, operation: &Value, copied: &mut usize) -> Option<()> {
    let path = tokens(operation.get("path")?.as_str()?)?;
    let from = || tokens(operation.get("from")?.as_str()?);
    let value = || operation.get("value").cloned();
    match operation.get("op")?.as_str()? {
        "add" => add(object, &path, value()?),
        "remove" => remove(object, &path).map(drop),
        "replace" => replace(object, &path, value()?),
        "move" => {
            let from = from()?;
            if path.starts_with(&from) && path.len() > from.len() {
                return None;
            }
            let moved = remove(object, &from)?;
            add(object, &path, moved)
        }
        "copy" => {
            let source = find(object, &from()?)?;
            *copied = copied.saturating_add(source.to_string().len());
            if *copied > MOST_COPIED {
                return None;
            }
            let value = source.clone();
            add(object, &path, value)
        }
        "test" => {
            let expected = value().unwrap_or(Value::Null);
            let found = find(object, &path).map_or(&Value::Null, |value| &*value);
            (*found == expected).then_some(())
        }
        _ => None,
    }
}

fn tokens(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let rest = path.strip_prefix('/')?;
    Some(
        rest.split('/')
            .map(|token| token.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

fn index(token: &str, length: usize, end: bool) -> Option<usize> {
    if token == "-" {
        return end.then_some(length);
    }
    let number: i64 = token.parse().ok()?;
    let number = if number < 0 {
        number + i64::try_from(length).ok()?
    } else {
        number
    };
    let number = usize::try_from(number).ok()?;
    (number < length || (end && number == length)).then_some(number)
}

fn find<'a>(object: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    let mut at = object;
    for token in path {
        at = match at {
            Value::Object(map) => map.get_mut(token)?,
            Value::Array(list) => {
                let index = index(token, list.len(), false)?;
                list.get_mut(index)?
            }
            _ => return None,
        };
    }
    Some(at)
}

/// As in Kubernetes, a member that is not there yet may be replaced; a list item may not.
fn replace(object: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, parents)) = path.split_last() else {
        *object = value;
        return Some(());
    };
    match find(object, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(list) => {
            let index = index(last, list.len(), false)?;
            list[index] = value;
        }
        _ => return None,
    }
    Some(())
}

fn add(object: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, parents)) = path.split_last() else {
        *object = value;
        return Some(());
    };
    match find(object, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(list) => {
            let index = index(last, list.len(), true)?;
            list.insert(index, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(object: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    match find(object, parents)? {
        Value::Object(map) => map.shift_remove(last),
        Value::Array(list) => {
            let index = index(last, list.len(), false)?;
            Some(list.remove(index))
        }
        _ => None,
    }
}
