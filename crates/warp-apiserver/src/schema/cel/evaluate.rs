//! Runs the rules of a schema on an object, within the budget Kubernetes gives them.

use std::ops::ControlFlow;

use serde_json::Value;

use super::Rule;
use super::interpret::{Old, Stop, Variables};
use crate::schema::validate::{correlate_item, same};
use crate::schema::{FieldError, Path, Schema, go_quote};

/// The longest message an expression may produce.
const LONGEST_MESSAGE: usize = 5 * 1024;
/// What all rules together may spend on one object.
const BUDGET: u64 = 10_000_000;

/// Refusals, and what is forgiven because it was like that before.
pub(in crate::schema) fn evaluate(
    schema: &Schema,
    object: &Value,
    old: Option<&Value>,
) -> (Vec<FieldError>, Vec<FieldError>) {
    let mut pass = Pass::new();
    let _ = pass.walk(schema, object, old, &Path::root(), false);
    (pass.errors, pass.forgiven)
}

/// Rules on a default value: once as if it had always been there, once as if it were new.
pub(in crate::schema) fn evaluate_at(
    schema: &Schema,
    value: &Value,
    path: &Path,
) -> Vec<FieldError> {
    let mut pass = Pass::new();
    let ended = pass.walk_with(schema, value, Some(value), path, Ratchet::Never);
    if pass.errors.is_empty() && ended.is_continue() {
        let _ = pass.walk_with(schema, value, None, path, Ratchet::Never);
    }
    pass.errors
}

/// Whether failures of rules that do not look at the old value are forgiven here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ratchet {
    Never,
    /// The nearest value that can be matched with an old one is unchanged.
    Unchanged,
    Changed,
}

/// Whether rules are still run: once the budget is spent, none is.
type Going = ControlFlow<()>;

/// One walk over an object.
struct Pass {
    errors: Vec<FieldError>,
    forgiven: Vec<FieldError>,
    budget: u64,
}

/// One rule on one value.
struct Case<'a> {
    schema: &'a Schema,
    value: &'a Value,
    rule: &'a Rule,
    path: &'a Path,
    /// A failure is forgiven: the value was like that before.
    forgiven: bool,
}

impl Case<'_> {
    fn type_name(&self) -> &'static str {
        self.schema.node().kind.map_or("", |kind| kind.name())
    }

    fn refuse(&self, detail: String) -> FieldError {
        FieldError::invalid(self.path, self.type_name(), detail)
    }

    /// Where the rule says its failures belong.
    fn place(&self) -> Path {
        match &self.rule.field_path {
            Some(below) => self.path.child(&normalised(below)),
            None => self.path.clone(),
        }
    }

    fn failure(&self, detail: String) -> FieldError {
        let path = self.place();
        let mut error = match self.rule.reason.as_deref() {
            Some("FieldValueForbidden") => return FieldError::forbidden(&path, detail),
            Some("FieldValueRequired") => return FieldError::required(&path, detail),
            Some("FieldValueDuplicate") => FieldError::duplicate(&path, self.value.clone()),
            _ => FieldError::invalid(&path, self.value.clone(), detail),
        };
        if matches!(self.type_name(), "object" | "array") {
            error.value = None;
        }
        error
    }
}

impl Pass {
    fn new() -> Self {
        Self {
            errors: Vec::new(),
            forgiven: Vec::new(),
            budget: BUDGET,
        }
    }

    fn walk(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
        unchanged: bool,
    ) -> Going {
        let unchanged = old.map_or(unchanged, |old| same(old, value));
        let ratchet = if unchanged {
            Ratchet::Unchanged
        } else {
            Ratchet::Changed
        };
        self.walk_with(schema, value, old, path, ratchet)
    }

    fn walk_with(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
        ratchet: Ratchet,
    ) -> Going {
        let node = schema.node();
        if !node.has_rules || value.is_null() {
            return Going::Continue(());
        }
        if !node.rules.is_empty() {
            let forgiven = ratchet == Ratchet::Unchanged;
            let old = old.filter(|old| !old.is_null());
            self.run(schema, value, old, path, forgiven)?;
        }
        match value {
            Value::Object(map) => {
                let before = old.filter(|_| !node.atomic);
                let before = |name: &str| before.and_then(|old| old.get(name));
                for (name, member) in &node.properties {
                    if let Some(value) = map.get(name) {
                        self.descend(member, value, before(name), &path.child(name), ratchet)?;
                    }
                }
                if let Some(member) = node.additional_schema() {
                    let names = map
                        .iter()
                        .filter(|(name, _)| !node.properties.contains_key(*name));
                    for (name, value) in names {
                        self.descend(member, value, before(name), &path.key(name), ratchet)?;
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &node.items else {
                    return Going::Continue(());
                };
                for (index, item) in list.iter().enumerate() {
                    let old = old.and_then(|old| correlate_item(node, item, old));
                    self.descend(items, item, old, &path.index(index), ratchet)?;
                }
            }
            _ => {}
        }
        Going::Continue(())
    }

    fn descend(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
        ratchet: Ratchet,
    ) -> Going {
        if ratchet == Ratchet::Never {
            return self.walk_with(schema, value, old, path, ratchet);
        }
        let unchanged = ratchet == Ratchet::Unchanged && old.is_none();
        self.walk(schema, value, old, path, unchanged)
    }

    /// The rules of one node on one value.
    fn run(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
        forgiven: bool,
    ) -> Going {
        for rule in &schema.node().rules {
            let programs = rule.programs();
            let case = Case {
                schema,
                value,
                rule,
                path,
                forgiven: forgiven && !programs.uses_old_self,
            };
            let program = match &programs.rule {
                Ok(program) => program,
                Err(error) => {
                    let refused = case.refuse(format!("rule compile error: {error}"));
                    self.errors.push(refused);
                    continue;
                }
            };
            if programs.uses_old_self && old.is_none() && !rule.optional_old_self {
                continue;
            }
            let plain = Variables {
                own: Some((schema, value)),
                old: old.map_or(Old::Undeclared, Old::There),
            };
            let variables = if rule.optional_old_self {
                Variables {
                    old: Old::Optional(old),
                    ..plain
                }
            } else {
                plain
            };
            let ran = program.execute(variables, |result| result.as_bool() == Some(true));
            let Some(left) = self
                .budget
                .checked_sub(ran.spent)
                .filter(|_| self.budget > 0)
            else {
                self.errors.push(case.refuse(
                    "validation failed due to running out of cost budget, no further validation \
                     rules will be run"
                        .to_owned(),
                ));
                return Going::Break(());
            };
            self.budget = left;
            match ran.result {
                Ok(true) => {}
                Ok(false) => self.fail(&case, plain)?,
                Err(stop) => self.stop(&case, &stop)?,
            }
        }
        Going::Continue(())
    }

    /// A rule that could not be evaluated.
    fn stop(&mut self, case: &Case<'_>, stop: &Stop) -> Going {
        let rule = rule_text(case.rule);
        let (detail, going) = match stop {
            Stop::OverLimit => (
                format!(
                    "'operation cancelled: actual cost limit exceeded': no further validation \
                     rules will be run due to call cost exceeds limit for rule: {rule}"
                ),
                Going::Break(()),
            ),
            Stop::Fault(text) if text.starts_with("no such overload") => (
                format!(
                    "'{text}': call arguments did not match a supported operator, function or \
                     macro signature for rule: {rule}"
                ),
                Going::Continue(()),
            ),
            Stop::Fault(text) => (
                format!("{text} evaluating rule: {rule}"),
                Going::Continue(()),
            ),
        };
        self.errors.push(case.refuse(detail));
        going
    }

    /// A rule that does not hold.
    fn fail(&mut self, case: &Case<'_>, variables: Variables<'_>) -> Going {
        let (error, going) = match self.message(case.rule, variables) {
            Ok(written) => {
                let detail = written.unwrap_or_else(|| match &case.rule.message {
                    Some(text) => text.trim().to_owned(),
                    None => format!("failed rule: {}", rule_text(case.rule)),
                });
                (case.failure(detail), Going::Continue(()))
            }
            Err(detail) => {
                let error = FieldError::invalid(&case.place(), case.type_name(), detail);
                (error, Going::Break(()))
            }
        };
        if case.forgiven {
            self.forgiven.push(error);
        } else {
            self.errors.push(error);
        }
        going
    }

    /// What the rule's own expression says about a failure, if that is a usable message; an error when
    /// saying it is too expensive.
    fn message(&mut self, rule: &Rule, variables: Variables<'_>) -> Result<Option<String>, String> {
        let Some(program) = rule.programs().message.as_ref() else {
            return Ok(None);
        };
        let ran = program.execute(variables, |result| result.as_str().map(str::to_owned));
        self.budget = self.budget.checked_sub(ran.spent).ok_or(
            "messageExpression evaluation failed due to running out of cost budget, no further \
             validation rules will be run",
        )?;
        let text = match ran.result {
            Ok(text) => text.unwrap_or_default(),
            Err(Stop::Fault(_)) => return Ok(None),
            Err(Stop::OverLimit) => {
                let expression = rule.message_expression.as_deref().unwrap_or_default();
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for \
                     messageExpression: {}",
                    go_quote(expression)
                ));
            }
        };
        let text = text.trim();
        let usable = !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n');
        Ok(usable.then(|| text.to_owned()))
    }
}

/// `.spec['a.b']` as it stands in a path: `spec[a.b]`, without the leading dot.
fn normalised(text: &str) -> String {
    text.trim()
        .trim_start_matches('.')
        .replace("['", "[")
        .replace("']", "]")
}

fn rule_text(rule: &Rule) -> String {
    match &rule.message {
        Some(message) => message.trim().to_owned(),
        None => rule.expression.trim().to_owned(),
    }
}
