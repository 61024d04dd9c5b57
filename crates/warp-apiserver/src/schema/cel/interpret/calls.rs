//! Functions: those that look at values as they lie are here, the rest is in the libraries.

use std::sync::LazyLock;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::{Context, IdedExpr, Value as CelValue};
use regex::Regex;

use super::{Interpreter, Outcome, Stop, go_error, spending};
use crate::schema::cel::functions;
use crate::schema::cel::value::Val;

/// Registering the libraries costs more than most rules; they are the same for every rule.
static LIBRARIES: LazyLock<Context<'static>> = LazyLock::new(|| Context::default().with_all());

/// A name of a type, or what `type` returns: names stand for types, which is all rules compare.
pub(super) fn type_value<'a>(name: &str) -> Val<'a> {
    Val::text(format!("type {name}"))
}

fn type_of(value: &Val<'_>) -> &'static str {
    match value {
        Val::Text(_) | Val::Plain(CelValue::String(_)) => "string",
        Val::Plain(CelValue::Bool(_)) => "bool",
        Val::Plain(CelValue::Int(_)) => "int",
        Val::Plain(CelValue::UInt(_)) => "uint",
        Val::Plain(CelValue::Float(_)) => "double",
        Val::Plain(CelValue::Bytes(_)) => "bytes",
        Val::Plain(CelValue::Null) => "null_type",
        Val::List(_) => "list",
        Val::Map(_) | Val::Object(_) => "map",
        Val::Plain(_) | Val::Optional(_) | Val::Fault(_) => "other",
    }
}

impl<'a> Interpreter<'a> {
    pub(super) fn function(&mut self, call: &'a CallExpr) -> Outcome<'a> {
        let space = match call.target.as_deref().map(|target| &target.expr) {
            Some(Expr::Ident(name)) if self.is_space(name, &call.func_name) => Some(name.as_str()),
            _ => None,
        };
        let mut arguments = Vec::with_capacity(call.args.len() + 1);
        if let (Some(target), None) = (call.target.as_deref(), space) {
            arguments.push(self.eval(target)?);
        }
        for argument in &call.args {
            arguments.push(self.eval(argument)?);
        }
        let named;
        let name = match space {
            Some(space) => {
                named = format!("{space}.{}", call.func_name);
                named.as_str()
            }
            None => call.func_name.as_str(),
        };
        let result = match self.native(name, &arguments) {
            Some(result) => result,
            None => library(call, space, &arguments),
        }?;
        let cost = spending::calling(name, &arguments, &result);
        self.meter.spend(cost)?;
        Ok(result)
    }

    /// Whether a name before a dot begins the name of a function.
    fn is_space(&self, name: &str, function: &str) -> bool {
        functions::NAMESPACES.contains(&name)
            && self.variable(name).is_none()
            && functions::exists(&format!("{name}.{function}"))
    }

    /// Functions that need no copy of their arguments; `None` for those of the libraries.
    fn native(&mut self, name: &str, arguments: &[Val<'a>]) -> Option<Outcome<'a>> {
        let flag = |value: bool| Some(Ok(Val::from(value)));
        match (name, arguments) {
            ("size", [it]) => {
                let size = it.size().and_then(|size| i64::try_from(size).ok());
                let size = size.map(|size| Val::Plain(CelValue::Int(size)));
                Some(size.ok_or_else(Stop::no_overload))
            }
            ("startsWith", [text, part]) => flag(text.as_str()?.starts_with(part.as_str()?)),
            ("endsWith", [text, part]) => flag(text.as_str()?.ends_with(part.as_str()?)),
            ("contains", [text, part]) => flag(text.as_str()?.contains(part.as_str()?)),
            ("matches", [text, pattern]) => {
                let (text, pattern) = (text.as_str()?, pattern.as_str()?);
                Some(self.matches(text, pattern).map(Val::from))
            }
            ("dyn", [it]) => Some(Ok(it.clone())),
            ("type", [it]) => Some(Ok(type_value(type_of(it)))),
            ("optional.none", []) => Some(Ok(Val::Optional(None))),
            ("optional.of", [it]) => Some(Ok(Val::optional(Some(it.clone())))),
            ("optional.ofNonZeroValue", [it]) => {
                let value = (!is_zero(it)).then(|| it.clone());
                Some(Ok(Val::optional(value)))
            }
            ("hasValue", [Val::Optional(it)]) => flag(it.is_some()),
            ("value", [Val::Optional(it)]) => {
                let none = || Stop::fault("optional.none() dereference".to_owned());
                Some(it.as_ref().map(|it| (**it).clone()).ok_or_else(none))
            }
            ("or", [it @ Val::Optional(value), other]) => {
                let chosen = if value.is_some() { it } else { other };
                Some(Ok(chosen.clone()))
            }
            ("orValue", [Val::Optional(it), other]) => {
                let chosen = it.as_ref().map(|it| (**it).clone());
                Some(Ok(chosen.unwrap_or_else(|| other.clone())))
            }
            _ => None,
        }
    }

    /// A rule in a loop matches the same pattern again and again; it is compiled once.
    fn matches(&mut self, text: &str, pattern: &str) -> Result<bool, Stop> {
        if let Some(known) = self.patterns.get(pattern) {
            return Ok(known.is_match(text));
        }
        let compiled = Regex::new(pattern)
            .map_err(|error| Stop::fault(format!("error parsing regexp: {error}")))?;
        let found = compiled.is_match(text);
        self.patterns.insert(pattern.to_owned(), compiled);
        Ok(found)
    }
}

fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Optional(inner) => inner.is_none(),
        Val::Plain(CelValue::Opaque(_)) => false,
        Val::Plain(plain) => plain.is_zero(),
        other => other.size() == Some(0),
    }
}

/// Calls a function of the libraries: its arguments become variables of a call made for them.
fn library<'a>(call: &CallExpr, space: Option<&str>, arguments: &[Val<'a>]) -> Outcome<'a> {
    let mut context = LIBRARIES.new_inner_scope();
    let ident = |name: String| IdedExpr {
        id: 0,
        expr: Expr::Ident(name),
    };
    let mut names = Vec::with_capacity(arguments.len());
    for (index, argument) in arguments.iter().enumerate() {
        let name = format!("@{index}");
        context.add_variable_from_value(name.as_str(), argument.to_cel());
        names.push(ident(name));
    }
    let target = match (space, &call.target) {
        (Some(space), _) => Some(Box::new(ident(space.to_owned()))),
        (None, Some(_)) => Some(Box::new(names.remove(0))),
        (None, None) => None,
    };
    let made = IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr {
            func_name: call.func_name.clone(),
            target,
            args: names,
        }),
    };
    let result = context.resolve(&made);
    result
        .map(|value| Val::from_cel(&value))
        .map_err(|error| Stop::Fault(go_error(&error).into()))
}
