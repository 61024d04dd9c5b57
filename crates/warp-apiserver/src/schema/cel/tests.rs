//! Behaviour of CEL rules: what is refused when a definition is written, and what they cost.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::schema::{Path, Schema, structural};

/// What is said about one rule on a schema.
fn refusals(schema: &Value, rule: &str) -> Vec<String> {
    let mut schema = schema.clone();
    schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let root = json!({"type": "object", "properties": {"spec": schema}});
    let errors = structural::check(&root, &Path::new("s"), false);
    errors.into_iter().map(|error| error.detail).collect()
}

fn object() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "when": {"type": "string", "format": "date-time"},
        "long": {"type": "string", "format": "duration"},
        "raw": {"type": "string", "format": "byte", "maxLength": 20},
        "port": {"x-kubernetes-int-or-string": true, "maxLength": 5},
        "free": {"x-kubernetes-preserve-unknown-fields": true},
        "names": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}},
        "labels": {"type": "object", "maxProperties": 10,
                   "additionalProperties": {"type": "string", "maxLength": 10}},
        "items": {"type": "array", "maxItems": 10, "items": {
            "type": "object", "properties": {"id": {"type": "string", "maxLength": 10}},
        }},
    }})
}

#[test]
fn well_typed_rules_are_accepted() {
    let rules = [
        "self.count + 1 > 0",
        "self.count < self.ratio",
        "self.on ? self.count > 1 : self.count < 1",
        "self.name.startsWith('a') && self.name.size() > 2",
        "self.name + 'x' == 'ax'",
        "self.when > timestamp('2020-01-01T00:00:00Z') + self.long",
        "self.when.getFullYear() == 2020",
        "self.raw == b'abc'",
        "self.port == 5 || self.port == 'http'",
        "'a' in self.names && 'a' in self.labels",
        "self.names.all(n, n != '') && self.labels.all(k, self.labels[k] != '')",
        "self.names.map(n, n + 'x').exists(n, n == 'ax')",
        "self.names.filter(n, n.size() > 1).size() > 0",
        "self.items.exists_one(i, i.id == 'a')",
        "self.items.map(i, i.id) == ['a', 'b']",
        "has(self.name) && !has(self.labels.x)",
        "self.names[0] == self.labels['a']",
        "size(self.names) + size(self.labels) + size(self.name) > 0",
        "self.?name.orValue('x') == 'x'",
        "[1, 2, 3].sum() == self.count",
        "self.items != null || true",
        "quantity(self.name).isLessThan(quantity('1Gi'))",
        "string(self.count) == '1' && int(self.name) == 1 && double(self.count) > 0.5",
        "self.names.join(',') == 'a,b'",
        "type(self.port) == int",
    ];
    for rule in rules {
        let found = refusals(&object(), rule);
        let comparing_null = rule.contains("null");
        assert!(found.is_empty() || comparing_null, "{rule}: {found:?}");
    }
}

#[test]
fn rules_that_cannot_mean_anything_are_refused() {
    let cases = [
        ("self.missing == 1", "undefined field 'missing'"),
        ("self.free == 1", "undefined field 'free'"),
        (
            "self.count == 'a'",
            "found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (
            "self.count == self.ratio",
            "found no matching overload for '_==_' applied to '(int, double)'",
        ),
        (
            "self.count + 'a' == 'a'",
            "found no matching overload for '_+_'",
        ),
        (
            "self.count && true",
            "found no matching overload for '_&&_'",
        ),
        (
            "self.name.startsWith(1)",
            "found no matching overload for 'startsWith' applied to 'string.(int)'",
        ),
        (
            "self.count.size() > 0",
            "found no matching overload for 'size' applied to 'int.()'",
        ),
        (
            "self.names['a'] == 'a'",
            "found no matching overload for '_[_]'",
        ),
        (
            "self.names.all(n, n > 1)",
            "found no matching overload for '_>_'",
        ),
        (
            "self.count.all(n, n > 1)",
            "cannot be range of a comprehension",
        ),
        ("self.count.x == 1", "does not support field selection"),
        ("nothing.x == 1", "undeclared reference to 'nothing'"),
        ("self.name.frob()", "undeclared reference to 'frob'"),
        ("frob(self.name)", "undeclared reference to 'frob'"),
        ("1 in self.names", "found no matching overload for '@in'"),
        ("self.count", "cel expression must evaluate to a bool"),
        (
            "self.on ? 1 : 'a'",
            "found no matching overload for '_?_:_'",
        ),
        ("self.name ==", "compilation failed"),
        ("self.items[0].missing == ''", "undefined field 'missing'"),
    ];
    for (rule, expected) in cases {
        let found = refusals(&object(), rule);
        assert!(
            found.iter().any(|text| text.contains(expected)),
            "{rule}: {found:?}"
        );
    }
}

#[test]
fn unbounded_data_makes_rules_too_expensive_and_bounds_make_them_affordable() {
    let nested = |outer: Value, inner: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 5}}});
        if !outer.is_null() {
            schema["maxItems"] = outer;
        }
        if !inner.is_null() {
            schema["items"]["maxItems"] = inner;
        }
        schema
    };
    let rule = "self.all(x, x.all(y, y != ''))";
    let open = refusals(&nested(Value::Null, Value::Null), rule);
    assert!(
        open.iter()
            .any(|text| text.contains("exceeds budget by factor of more than 100x")),
        "{open:?}"
    );
    assert_eq!(
        refusals(&nested(json!(10), json!(10)), rule),
        Vec::<String>::new()
    );
}

#[test]
fn rules_see_old_values_only_where_they_can_be_matched() {
    let schema = json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {
            "id": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "id is immutable"}
            ]},
        }}},
    });
    let schema = Schema::from_crd(&schema, false).expect("valid");
    let object = |id: &str| json!({"metadata": {"name": "x"}, "spec": {"id": id}});
    assert!(schema.validate(&object("a"), None).is_empty());
    assert!(schema.validate(&object("a"), Some(&object("a"))).is_empty());
    let errors = schema.validate(&object("b"), Some(&object("a")));
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "spec.id: Invalid value: \"b\": id is immutable"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn random_expressions_never_panic(rule in "[a-z0-9 .()\\[\\]'+*&|<>=!?:,{}-]{0,60}") {
        let _ = refusals(&object(), &rule);
    }

    #[test]
    fn mutated_rules_never_panic(at in 0usize..40, with in any::<char>()) {
        let mut rule: Vec<char> = "self.items.all(i, i.id.startsWith('a') && i.id in self.names)".chars().collect();
        let at = at.min(rule.len() - 1);
        rule[at] = with;
        let rule: String = rule.into_iter().collect();
        let _ = refusals(&object(), &rule);
    }
}
