//! Label selectors and their expressions, with Kubernetes' meaning for pods and for nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::random::Fingerprint;

pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    /// The label, read as an integer, is greater than the only value (nodes only).
    Gt,
    /// The label, read as an integer, is less than the only value (nodes only).
    Lt,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expression {
    pub key: Arc<str>,
    pub operator: Operator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Arc<str>>,
}

impl Expression {
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Self {
        let values = values.iter().map(|&v| Arc::from(v)).collect();
        Self {
            key: Arc::from(key),
            operator,
            values,
        }
    }

    /// Whether a value that may be missing satisfies the expression.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| **v == *value);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => self
                .compare(value)
                .is_some_and(|(label, bound)| label > bound),
            Operator::Lt => self
                .compare(value)
                .is_some_and(|(label, bound)| label < bound),
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        let [bound] = self.values.as_slice() else {
            return None;
        };
        Some((value?.parse().ok()?, bound.parse().ok()?))
    }

    pub(super) fn fingerprint(&self, print: Fingerprint) -> Fingerprint {
        let print = print
            .text(&self.key)
            .word(self.operator as u64)
            .word(self.values.len() as u64);
        self.values
            .iter()
            .fold(print, |print, value| print.text(value))
    }
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values = self.values.join(", ");
        match self.operator {
            Operator::In => write!(f, "{} in ({values})", self.key),
            Operator::NotIn => write!(f, "{} not in ({values})", self.key),
            Operator::Exists => write!(f, "{}", self.key),
            Operator::DoesNotExist => write!(f, "!{}", self.key),
            Operator::Gt => write!(f, "{} > {values}", self.key),
            Operator::Lt => write!(f, "{} < {values}", self.key),
        }
    }
}

/// Selects pods or namespaces by label. Empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Selector {
    pub match_labels: Labels,
    pub match_expressions: Vec<Expression>,
}

impl Selector {
    pub fn labels(pairs: &[(&str, &str)]) -> Self {
        let match_labels = pairs
            .iter()
            .map(|&(k, v)| (Arc::from(k), Arc::from(v)))
            .collect();
        Self {
            match_labels,
            match_expressions: Vec::new(),
        }
    }

    /// Whether it says nothing at all (and so selects everything).
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        let equal = |(key, value): (&Arc<str>, &Arc<str>)| labels.get(key) == Some(value);
        self.match_labels.iter().all(equal)
            && self
                .match_expressions
                .iter()
                .all(|e| e.matches(labels.get(&e.key).map(|v| &**v)))
    }
}

/// One alternative of a required node affinity. All its expressions must hold; an empty term holds
/// nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeTerm {
    pub match_expressions: Vec<Expression>,
    /// Only `metadata.name` exists as a field.
    pub match_fields: Vec<Expression>,
}

impl NodeTerm {
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return false;
        }
        let field = |e: &Expression| e.matches((&*e.key == "metadata.name").then_some(name));
        self.match_expressions
            .iter()
            .all(|e| e.matches(labels.get(&e.key).map(|v| &**v)))
            && self.match_fields.iter().all(field)
    }

    pub(super) fn fingerprint(&self, print: Fingerprint) -> Fingerprint {
        let print = print.word(self.match_expressions.len() as u64);
        let print = self
            .match_expressions
            .iter()
            .fold(print, |print, e| e.fingerprint(print));
        let print = print.word(self.match_fields.len() as u64);
        self.match_fields
            .iter()
            .fold(print, |print, e| e.fingerprint(print))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_follow_kubernetes() {
        use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
        let cases = [
            (In, &["a", "b"][..], Some("a"), true),
            (In, &["a"][..], None, false),
            (NotIn, &["a"][..], None, true),
            (NotIn, &["a"][..], Some("a"), false),
            (Exists, &[][..], Some(""), true),
            (DoesNotExist, &[][..], None, true),
            (Gt, &["5"][..], Some("6"), true),
            (Gt, &["5"][..], Some("5"), false),
            (Gt, &["5"][..], Some("many"), false),
            (Gt, &["x"][..], Some("6"), false),
            (Lt, &["5"][..], Some("-1"), true),
            (Lt, &["5"][..], None, false),
            (Lt, &["5", "6"][..], Some("1"), false),
        ];
        for (operator, values, label, expected) in cases {
            let expression = Expression::new("k", operator, values);
            assert_eq!(
                expression.matches(label),
                expected,
                "{expression} on {label:?}"
            );
        }
    }

    #[test]
    fn an_empty_node_term_matches_nothing_and_an_empty_selector_everything() {
        assert!(!NodeTerm::default().matches("n", &Labels::new()));
        assert!(Selector::default().matches(&Labels::new()));
    }

    #[test]
    fn only_the_name_is_a_field() {
        let term = |key: &str, operator| NodeTerm {
            match_fields: vec![Expression::new(key, operator, &["n1"])],
            ..NodeTerm::default()
        };
        assert!(term("metadata.name", Operator::In).matches("n1", &Labels::new()));
        assert!(!term("metadata.name", Operator::NotIn).matches("n1", &Labels::new()));
        assert!(!term("metadata.uid", Operator::In).matches("n1", &Labels::new()));
    }
}
