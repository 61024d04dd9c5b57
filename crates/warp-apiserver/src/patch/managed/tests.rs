//! Ownership: what must hold whatever managers do.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::patch::fieldset::FieldSet;
use crate::schema::Schema;

fn schema() -> Schema {
    Schema::from_crd(
        &json!({
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "string"},
                        "b": {"type": "integer"},
                        "map": {"type": "object", "additionalProperties": {"type": "string"}},
                        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                        "whole": {"type": "array", "items": {"type": "string"}},
                        "items": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["name"],
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
                            },
                        },
                    },
                },
            },
        }),
        false,
    )
    .expect("a structural schema")
}

fn writer<'a>(manager: &'a str, now: &'a str, schema: &'a Schema) -> Writer<'a> {
    Writer {
        manager,
        api_version: "example.com/v1",
        group: "example.com",
        kind: "Widget",
        subresource: "",
        now,
        custom: true,
        schema,
        reset: &[],
    }
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "callers hand over what they generated"
)]
fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

fn spec() -> impl Strategy<Value = Value> {
    let letters = || proptest::collection::btree_set("[x-z]", 0..3);
    (
        proptest::option::of("[p-r]"),
        proptest::option::of(0_i64..3),
        proptest::option::of(proptest::collection::btree_map("[k-m]", "[p-r]", 1..3)),
        letters(),
        proptest::collection::vec("[x-z]", 0..3),
        proptest::collection::btree_map("[s-u]", proptest::option::of(0_i64..3), 0..3),
    )
        .prop_map(|(a, b, map, set, whole, items)| {
            let mut spec = json!({});
            if let Some(a) = a {
                spec["a"] = a.into();
            }
            if let Some(b) = b {
                spec["b"] = b.into();
            }
            if let Some(map) = map {
                spec["map"] = json!(map);
            }
            if !set.is_empty() {
                spec["set"] = json!(set);
            }
            if !whole.is_empty() {
                spec["whole"] = json!(whole);
            }
            if !items.is_empty() {
                let items: Vec<Value> = items
                    .into_iter()
                    .map(|(name, size)| match size {
                        Some(size) => json!({"name": name, "size": size}),
                        None => json!({"name": name}),
                    })
                    .collect();
                spec["items"] = json!(items);
            }
            spec
        })
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(first in spec(), second in spec()) {
        let schema = schema();
        let base = apply(None, &object(first), &writer("one", "t1", &schema), false).expect("created").object;
        let once = apply(Some(&base), &object(second.clone()), &writer("two", "t2", &schema), true)
            .expect("forced").object;
        let twice = apply(Some(&once), &object(second), &writer("two", "t3", &schema), false)
            .expect("no conflict with oneself").object;
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn what_is_applied_is_there_and_what_is_dropped_is_gone(first in spec(), second in spec()) {
        let schema = schema();
        let live = apply(None, &object(first), &writer("one", "t1", &schema), false).expect("created").object;
        let live = apply(Some(&live), &object(second.clone()), &writer("one", "t2", &schema), false)
            .expect("no other owner").object;
        let mut shown = live["spec"].clone();
        let mut sent = second;
        // Sets and keyed lists keep their members; their order is nobody's.
        for value in [&mut shown, &mut sent] {
            for list in ["set", "items"] {
                if let Some(list) = value.get_mut(list).and_then(Value::as_array_mut) {
                    list.sort_by_key(ToString::to_string);
                }
            }
        }
        let shown = if shown.is_null() { json!({}) } else { shown };
        prop_assert_eq!(shown, sent);
    }

    #[test]
    fn an_owner_is_never_overwritten_without_force(first in spec(), second in spec()) {
        let schema = schema();
        let live = apply(None, &object(first), &writer("one", "t1", &schema), false).expect("created").object;
        if let Ok(after) = apply(Some(&live), &object(second), &writer("two", "t2", &schema), false) {
            let own = decode(managed_fields(&live)).expect("decodes");
            let kept = decode(managed_fields(&after.object)).expect("decodes");
            let mine = |managers: &Managers| {
                managers.iter().find(|m| m.name == "one").map(|m| m.set.clone()).unwrap_or_default()
            };
            prop_assert_eq!(mine(&own), mine(&kept));
        }
    }

    #[test]
    fn field_sets_survive_their_text_form(first in spec(), second in spec()) {
        let known = Some(schema());
        let a = typed::field_set(&object(first), &known);
        let b = typed::field_set(&object(second), &known);
        prop_assert_eq!(FieldSet::decode(&a.encode()), Some(a.clone()));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.union(&b), b.union(&a));
    }

    #[test]
    fn an_update_owns_exactly_what_it_changed(first in spec(), second in spec()) {
        let schema = schema();
        let mut live = object(first);
        update(None, &mut live, &writer("maker", "t1", &schema));
        let mut new = object(second);
        update(Some(&live), &mut new, &writer("changer", "t2", &schema));
        let comparison = typed::compare(&live, &new, &Some(schema.clone()));
        let mut changed = comparison.added.union(&comparison.modified);
        strip(&mut changed, &writer("changer", "t2", &schema));
        let managers = decode(managed_fields(&new)).expect("decodes");
        let owned = managers.iter().find(|m| m.name == "changer").map(|m| m.set.clone());
        prop_assert_eq!(owned.unwrap_or_default(), changed);
    }
}

#[test]
fn a_reset_gives_up_ownership_until_the_next_apply() {
    let schema = schema();
    let mut live = object(json!({"a": "p"}));
    update(None, &mut live, &writer("maker", "t1", &schema));
    let mut reset = live.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    update(Some(&live), &mut reset, &writer("maker", "t2", &schema));
    assert_eq!(managed_fields(&reset), None);
    let applied = apply(
        Some(&reset),
        &object(json!({"b": 1})),
        &writer("one", "t3", &schema),
        false,
    )
    .expect("applied")
    .object;
    let managers = decode(managed_fields(&applied)).expect("decodes");
    let names: Vec<&str> = managers
        .iter()
        .map(|manager| manager.name.as_str())
        .collect();
    assert_eq!(names, ["one", BEFORE_APPLY]);
}

#[test]
fn the_last_label_goes_and_the_name_stays() {
    let schema = schema();
    let mut first = object(json!({"a": "p"}));
    first["metadata"]["labels"] = json!({"team": "x"});
    let one = writer("one", "t1", &schema);
    let live = apply(None, &first, &one, false).expect("applied").object;
    let next = apply(Some(&live), &object(json!({"a": "p"})), &one, false);
    let next = next.expect("applied").object;
    assert_eq!(next["metadata"]["name"], "w");
    assert_eq!(next["metadata"].get("labels"), None);
    assert_eq!(
        (&next["kind"], &next["spec"]["a"]),
        (&json!("Widget"), &json!("p"))
    );
}

#[test]
fn what_another_changed_after_a_client_side_apply_is_a_conflict() {
    let schema = schema();
    let config = object(json!({"a": "p", "b": 1}));
    let mut live = config.clone();
    let text = config.to_string();
    live["metadata"]["annotations"] = json!({ LAST_APPLIED: text });
    update(
        None,
        &mut live,
        &writer("kubectl-client-side-apply", "t1", &schema),
    );
    let kubectl = writer("kubectl", "t3", &schema);
    let own = apply(Some(&live), &object(json!({"a": "q"})), &kubectl, false);
    assert!(own.is_ok(), "what is as it was applied is the same user's");
    let other = writer("other", "t2", &schema);
    let other = apply(Some(&live), &object(json!({"a": "theirs"})), &other, true);
    let other = other.expect("forced").object;
    let refused = apply(Some(&other), &config, &kubectl, false).expect_err("a conflict");
    assert!(
        refused.message.contains("conflict with \"other\""),
        "{refused:?}"
    );
}
