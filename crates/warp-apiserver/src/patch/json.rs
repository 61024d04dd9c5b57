//! JSON patch (RFC 6902) as Kubernetes applies it: `test` with null succeeds on a missing path
//! (controllers' finalizer helpers depend on it) and negative indices count from the end.

use serde_json::Value;

use crate::codec::status::Status;

/// Operations one patch may hold.
const MOST: usize = 10_000;
const REJECTED: &str = "the server rejected our request due to an error in our request";
/// Bytes all `copy` operations of a patch may add, as in Kubernetes: each can double what is there.
const COPIED: usize = 3 << 20;
/// Bytes all `move` operations of a patch may carry: each is measured, and measuring takes time.
const MOVED: usize = 64 << 20;
/// How deep a patch may nest an object: code that walks objects recurses.
const DEEPEST: usize = 128;

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
    let mut left = Allowance {
        copied: COPIED,
        moved: MOVED,
    };
    for operation in operations {
        step(&mut copy, operation, &mut left).ok_or_else(|| Status::unprocessable(REJECTED))?;
    }
    *object = copy;
    Ok(())
}

/// What the operations of one patch may still copy and move.
struct Allowance {
    copied: usize,
    moved: usize,
}

/// About how many bytes a value takes as JSON and how deep it nests; found without recursion,
/// because the answer may be "too deep to recurse".
fn measure(value: &Value) -> (usize, usize) {
    let (mut bytes, mut deepest) = (0_usize, 0);
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        deepest = deepest.max(depth);
        bytes += match value {
            Value::String(text) => text.len() + 2,
            Value::Array(list) => {
                open.extend(list.iter().map(|item| (item, depth + 1)));
                list.len() + 2
            }
            Value::Object(map) => {
                open.extend(map.values().map(|item| (item, depth + 1)));
                map.keys().map(|key| key.len() + 4).sum::<usize>() + 2
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        };
    }
    (bytes, deepest)
}

fn step(object: &mut Value, operation: &Value, left: &mut Allowance) -> Option<()> {
    let path = tokens(operation.get("path")?.as_str()?)?;
    if path.len() > DEEPEST {
        return None;
    }
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
            let (bytes, depth) = measure(find(object, &from)?);
            left.moved = left.moved.checked_sub(bytes)?;
            if path.len() > from.len() && depth + path.len() > DEEPEST {
                return None;
            }
            let moved = remove(object, &from)?;
            add(object, &path, moved)
        }
        "copy" => {
            let found = find(object, &from()?)?;
            let (bytes, depth) = measure(found);
            left.copied = left.copied.checked_sub(bytes)?;
            if depth + path.len() > DEEPEST {
                return None;
            }
            let copied = found.clone();
            add(object, &path, copied)
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
