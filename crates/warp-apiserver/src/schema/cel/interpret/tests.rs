//! Behaviour of the interpreter: results beside the library's own interpreter, sets and maps, and costs
//! beside their estimates.

use kube_cel::KubeCelExt as _;
use kube_cel::cel::Context;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::check::Environment;
use super::super::value::Val;
use super::super::{Program, compile};
use super::{Old, Ran, Stop, Variables};
use crate::schema::Schema;

fn described() -> Value {
    json!({"type": "object", "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string", "maxLength": 8},
        "list": {"type": "array", "maxItems": 6, "items": {"type": "integer"}},
        "words": {"type": "array", "maxItems": 6, "items": {"type": "string", "maxLength": 4}},
        "set": {"type": "array", "maxItems": 6, "x-kubernetes-list-type": "set",
                "items": {"type": "string", "maxLength": 4}},
        "keyed": {"type": "array", "maxItems": 6, "x-kubernetes-list-type": "map",
                  "x-kubernetes-list-map-keys": ["k"],
                  "items": {"type": "object", "required": ["k"], "properties": {
                      "k": {"type": "string", "maxLength": 4}, "v": {"type": "integer"}}}},
        "map": {"type": "object", "maxProperties": 6, "additionalProperties": {"type": "integer"}},
    }})
}

fn parsed(rule: &str) -> Program {
    compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"))
}

/// What a rule comes to on an object, as text.
fn ran(rule: &str, object: &Value, old: Option<&Value>) -> Ran<String> {
    let schema = Schema::from_crd(&described(), false).expect("a valid schema");
    let variables = Variables {
        own: Some((&schema, object)),
        old: old.map_or(Old::Undeclared, Old::There),
    };
    parsed(rule).execute(variables, |value| format!("{:?}", value.to_cel()))
}

fn said(rule: &str, object: &Value, old: Option<&Value>) -> String {
    match ran(rule, object, old).result {
        Ok(text) => text,
        Err(Stop::Fault(text)) => text.to_string(),
        Err(Stop::OverLimit) => "over the limit".to_owned(),
    }
}

#[test]
fn sets_and_maps_compare_and_add_up_by_what_is_on_the_left() {
    let new = json!({"set": ["b", "a"], "words": ["b", "a"],
        "keyed": [{"k": "x", "v": 1}, {"k": "y", "v": 2}]});
    let old = json!({"set": ["a", "b"], "words": ["a", "b"],
        "keyed": [{"k": "y", "v": 2}, {"k": "x", "v": 7}]});
    let cases = [
        ("self.set == oldSelf.set", true),
        ("self.set == ['a', 'b']", true),
        ("['a', 'b'] == self.set", false),
        ("self.words == oldSelf.words", false),
        ("self.set == ['a', 'a']", true),
        ("self.set == ['a', 'c']", false),
        ("self.set != oldSelf.set", false),
        ("self.set + ['c', 'a'] == ['a', 'b', 'c']", true),
        ("size(self.words + ['c', 'a']) == 4", true),
        ("self.keyed == oldSelf.keyed", false),
        ("self.keyed == [oldSelf.keyed[0], self.keyed[0]]", true),
        ("(self.keyed + oldSelf.keyed).map(i, i.v) == [7, 2]", true),
        ("{'s': self.set} == {'s': ['a', 'b']}", true),
        ("[self.set] == [['a', 'b']]", true),
        ("self.set in [['a', 'b']]", true),
    ];
    for (rule, expected) in cases {
        let result = said(rule, &new, Some(&old));
        assert_eq!(result, format!("Bool({expected})"), "{rule}");
    }
}

#[test]
fn a_later_element_makes_up_for_an_error_and_the_limit_is_final() {
    let object = json!({"list": [0, 1], "n": 0});
    let cases = [
        ("self.list.all(x, 10 / x > 20)", "Bool(false)"),
        ("self.list.exists(x, 10 / x == 10)", "Bool(true)"),
        ("self.list.all(x, 10 / x > 5)", "division by zero"),
        ("1 / self.n == 1 || true", "Bool(true)"),
        ("1 / self.n == 1 && false", "Bool(false)"),
        ("self.s == ''", "no such key: s"),
        ("self.?s.orValue('x')", "String(\"x\")"),
        ("self.list[2] == 0", "index out of bounds: 2"),
        ("size('h\u{e9}llo')", "Int(5)"),
    ];
    for (rule, expected) in cases {
        assert_eq!(said(rule, &object, None), expected, "{rule}");
    }
    let many: Vec<u32> = vec![0; 1_000];
    let object = json!({"list": many});
    let nested = "self.list.all(x, self.list.all(y, x + y >= 0))";
    for rule in [
        nested.to_owned(),
        format!("{nested} || true"),
        format!("true && {nested}"),
        "self.list.map(x, self.list + self.list).size() > 0".to_owned(),
    ] {
        let result = ran(&rule, &object, None).result;
        assert_eq!(result, Err(Stop::OverLimit), "{rule}");
    }
}

/// Expressions of one type each: `(numbers, texts, lists of numbers, truths)` built from each other.
fn truths() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        Just("self.n".to_owned()),
        (0..5i64).prop_map(|n| n.to_string()),
        Just("size(self.list)".to_owned()),
        Just("size(self.s)".to_owned()),
        Just("self.list.filter(e, e > 1).size()".to_owned()),
    ];
    let number = number.prop_recursive(2, 8, 2, |inner| {
        let operator = prop_oneof![Just("+"), Just("-"), Just("*"), Just("/"), Just("%")];
        prop_oneof![
            (inner.clone(), operator, inner.clone())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            inner.prop_map(|a| format!("self.list.map(e, e + {a}).size()")),
        ]
    });
    let text = prop_oneof![
        Just("self.s".to_owned()),
        "[a-c]{0,3}".prop_map(|s| format!("'{s}'")),
        Just("(self.s + 'a')".to_owned()),
        Just("self.words.join('')".to_owned()),
        Just("self.s.lowerAscii()".to_owned()),
    ];
    let list = prop_oneof![
        Just("self.list".to_owned()),
        prop::collection::vec(0..4i64, 0..3).prop_map(|list| format!("{list:?}")),
        Just("self.list.map(e, e * 2)".to_owned()),
        Just("(self.list + [1])".to_owned()),
    ];
    let compared = prop_oneof![Just("=="), Just("!="), Just("<"), Just(">=")];
    let same = prop_oneof![Just("=="), Just("!=")];
    let truth = prop_oneof![
        (number.clone(), compared.clone(), number.clone())
            .prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        (text.clone(), compared, text.clone()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        (list.clone(), same, list.clone()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        (number, list.clone()).prop_map(|(a, b)| format!("{a} in {b}")),
        (text.clone(), text).prop_map(|(a, b)| format!("{a}.contains({b})")),
        list.prop_map(|a| format!("{a}.sum() > 3")),
        Just("'a' in self.map && self.map['a'] > 1".to_owned()),
        Just("has(self.s) && has(self.map.a)".to_owned()),
    ];
    truth.prop_recursive(3, 16, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            inner
                .clone()
                .prop_map(|a| format!("self.list.all(e, e < 2 || {a})")),
            inner.prop_map(|a| format!("self.words.exists(w, w > 'a' && {a})")),
        ]
    })
}

fn objects() -> impl Strategy<Value = Value> {
    let word = "[a-c]{0,4}";
    (
        -3..4i64,
        "[a-cA-C]{0,8}",
        prop::collection::vec(0..5i64, 0..6),
        prop::collection::vec(word, 0..6),
        prop::collection::btree_map("[a-c]", 0..4i64, 0..4),
    )
        .prop_map(|(n, s, list, words, map)| {
            json!({"n": n, "s": s, "list": list, "words": words, "map": map})
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn results_are_those_of_the_library(rule in truths(), object in objects()) {
        let program = parsed(&rule);
        let schema = Schema::from_crd(&described(), false).expect("a valid schema");
        let mut context = Context::default().with_all();
        context.add_variable_from_value("self", Val::given(&object, Some(&schema)).to_cel());
        // Where the library gives up at the first error of a loop, ours goes on as Kubernetes does.
        if let Ok(theirs) = context.resolve(&program.expression) {
            prop_assert_eq!(said(&rule, &object, None), format!("{theirs:?}"), "{}", rule);
        }
    }

    #[test]
    fn what_evaluating_costs_stays_within_twice_the_estimate(rule in truths(), object in objects()) {
        let described = described();
        let described: &Map<String, Value> = described.as_object().expect("an object");
        let environment = Environment::new(described, false, false);
        let estimated = environment.check(&parsed(&rule).expression);
        let estimated = estimated.unwrap_or_else(|found| panic!("{rule}: {found:?}")).cost;
        let spent = ran(&rule, &object, None).spent;
        // Kubernetes estimates nothing for comparing two numbers, and counts one: at most once for each of the
        // few comparisons outside of loops, and beside more expensive steps within.
        prop_assert!(spent <= 2 * estimated + 20, "{}: spent {}, estimated {}", rule, spent, estimated);
    }
}
