//! `x-kubernetes-validations`: CEL rules of custom resources.
//!
//! Owns type checking, cost estimates, evaluation and its budget; the parser and the function
//! libraries are `kube-cel`'s. The walk over the schema that calls it is in `structural` and `validate`.

mod check;
mod cost;
mod depth;
mod evaluate;
mod functions;
mod interpret;
mod literals;
mod problem;
mod scope;
mod types;
mod value;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use kube_cel::cel::parser::{Expression, Parser};
use serde_json::{Map, Value};

use super::model::{Additional, Node};
use super::{FieldError, Path, Schema};

use depth::Depth;
use interpret::{Ran, Stop, Variables};
use value::Val;

pub(super) use evaluate::{evaluate, evaluate_at};
pub(crate) use scope::{Budget, Scope, field_path};

/// One rule as written, with its programs compiled when first needed.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) expression: String,
    pub(crate) message: Option<String>,
    pub(crate) message_expression: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) field_path: Option<String>,
    pub(crate) optional_old_self: bool,
    programs: Arc<OnceLock<Programs>>,
}

/// A parsed expression.
#[derive(Debug)]
struct Program {
    expression: Expression,
    depth: Depth,
}

impl Program {
    /// What its type checker says, asked where there is stack enough; an error shows the places in
    /// the text.
    fn check<'a>(
        &self,
        source: &str,
        environment: &check::Environment<'a>,
    ) -> Result<check::Checked<'a>, String> {
        self.depth.walk(|| {
            let checked = environment.check(&self.expression);
            checked.map_err(|problems| problem::describe(source, &problems))
        })?
    }

    /// Evaluates it and takes what is wanted from the result.
    fn execute<T: Send>(
        &self,
        variables: Variables<'_>,
        read: impl FnOnce(&Val<'_>) -> T + Send,
    ) -> Ran<T> {
        let run = || interpret::run(&self.expression, variables, read);
        self.depth.walk(run).unwrap_or_else(|why| Ran {
            result: Err(Stop::Fault(why.into())),
            spent: 0,
        })
    }
}

#[derive(Debug)]
struct Programs {
    rule: Result<Program, String>,
    uses_old_self: bool,
    message: Option<Program>,
}

impl Rule {
    fn programs(&self) -> &Programs {
        self.programs.get_or_init(|| {
            let rule = compile(&self.expression);
            let uses_old_self = rule.as_ref().is_ok_and(uses_old_self);
            let message = self
                .message_expression
                .as_deref()
                .and_then(|text| compile(text).ok());
            Programs {
                rule,
                uses_old_self,
                message,
            }
        })
    }
}

fn compile(text: &str) -> Result<Program, String> {
    // The parser recurses; an absurdly long or deep expression is refused before it gets there.
    const LONGEST: usize = 64 * 1024;
    if text.len() > LONGEST {
        return Err("ERROR: <input>:1:1: expression is too long".to_owned());
    }
    let depth = depth::of(text);
    if depth.too_deep() {
        return Err("expression nests too deeply: expression recursion limit exceeded".to_owned());
    }
    let parsed = depth.walk(|| {
        let parser = Parser::new().enable_optional_syntax(true);
        parser.parse(text).map_err(|refused| {
            let refused: Vec<_> = refused
                .errors
                .into_iter()
                .map(|error| (error.pos.0, error.pos.1, error.msg))
                .collect();
            problem::describe_syntax(text, &refused)
        })
    })?;
    parsed.map(|expression| Program { expression, depth })
}

fn uses_old_self(program: &Program) -> bool {
    program.expression.references().has_variable("oldSelf")
}

/// Reads the rules of one node.
pub(super) fn rules(value: Option<&Value>) -> Result<Vec<Rule>, String> {
    let Some(list) = value.and_then(Value::as_array) else {
        return Ok(Vec::new());
    };
    list.iter()
        .map(|rule| {
            let text = |name: &str| {
                let text = rule.get(name).and_then(Value::as_str);
                text.filter(|text| !text.is_empty()).map(str::to_owned)
            };
            Ok(Rule {
                expression: text("rule").ok_or("a validation rule has no expression")?,
                message: text("message"),
                message_expression: text("messageExpression"),
                reason: text("reason"),
                field_path: text("fieldPath"),
                optional_old_self: rule.get("optionalOldSelf") == Some(&Value::Bool(true)),
                programs: Arc::default(),
            })
        })
        .collect()
}

/// Notes on a freshly read node whether a walk for rules has anything to find in it.
pub(super) fn attach(node: &mut Node, root: bool) {
    let below = node.properties.values().any(has_rules)
        || node.items.as_ref().is_some_and(has_rules)
        || matches!(&node.additional, Additional::Schema(schema) if has_rules(schema));
    node.has_rules = below || !node.rules.is_empty();
    node.root = root;
}

pub(super) fn has_rules(schema: &Schema) -> bool {
    schema.node().has_rules
}

/// Everything a real server refuses about one rule of a CRD.
pub(super) fn check_rule(
    scope: &Scope<'_>,
    schema: &Map<String, Value>,
    rule: &Map<String, Value>,
    path: &Path,
    uncorrelatable: Option<&Path>,
) -> Vec<FieldError> {
    let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    let optional = rule.get("optionalOldSelf");
    let environment = check::Environment::new(
        schema,
        scope.is_root(),
        optional == Some(&Value::Bool(true)),
    );
    let rule_path = path.child("rule");
    let whole = || {
        serde_json::json!({
            "Rule": text("rule"),
            "Message": text("message"),
            "MessageExpression": text("messageExpression"),
            "Reason": rule.get("reason"),
            "FieldPath": text("fieldPath"),
            "OptionalOldSelf": rule.get("optionalOldSelf"),
        })
    };
    let program = match compile(text("rule")) {
        Ok(program) => program,
        Err(error) => {
            let detail = format!("compilation failed: {error}");
            errors.push(FieldError::invalid(&rule_path, whole(), detail).as_struct());
            return errors;
        }
    };
    match program.check(text("rule"), &environment) {
        Err(shown) => {
            let detail = format!("compilation failed: {shown}");
            errors.push(FieldError::invalid(&rule_path, whole(), detail).as_struct());
        }
        Ok(checked) if matches!(checked.shape.kind, types::Type::Bool | types::Type::Dyn) => {
            errors.extend(scope.observe(&rule_path, checked.cost, "estimated rule cost"));
        }
        Ok(_) => {
            let detail = "cel expression must evaluate to a bool";
            errors.push(FieldError::invalid(&rule_path, whole(), detail).as_struct());
        }
    }
    if !text("messageExpression").is_empty() {
        let path = path.child("messageExpression");
        let refuse = |detail: String| FieldError::invalid(&path, whole(), detail).as_struct();
        match compile(text("messageExpression")) {
            Err(error) => {
                errors.push(refuse(format!(
                    "messageExpression compilation failed: {error}"
                )));
            }
            Ok(program) => match program.check(text("messageExpression"), &environment) {
                Err(shown) => errors.push(refuse(format!(
                    "messageExpression compilation failed: {shown}"
                ))),
                Ok(checked)
                    if matches!(checked.shape.kind, types::Type::String | types::Type::Dyn) =>
                {
                    let name = "estimated messageExpression cost";
                    errors.extend(scope.observe_flat(&path, checked.cost, name));
                }
                Ok(_) => {
                    errors.push(refuse(
                        "messageExpression must evaluate to a string".to_owned(),
                    ));
                }
            },
        }
    }
    if uses_old_self(&program) {
        if let Some(above) = uncorrelatable {
            let detail = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {above}"
            );
            errors.push(FieldError::invalid(&rule_path, text("rule"), detail));
        }
    } else if let Some(optional) = optional.filter(|value| value.is_boolean()) {
        let detail = "may not be set if oldSelf is not used in rule";
        let path = path.child("optionalOldSelf");
        errors.push(FieldError::invalid(&path, optional.clone(), detail));
    }
    errors
}
