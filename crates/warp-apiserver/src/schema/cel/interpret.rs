//! Evaluates an expression on a resource.
//!
//! A walk over the parsed tree of our own: it counts the cost as it goes and stops at the limit, looks at
//! the resource without copying it, and knows which lists are sets or maps. The functions of the libraries
//! are `kube-cel`'s.

mod calls;
mod operators;
mod spending;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr,
};
use kube_cel::cel::{ExecutionError, IdedExpr, Value as CelValue};
use regex::Regex;
use serde_json::Value;

use super::check::TYPE_NAMES;
use super::value::Val;
use crate::schema::Schema;
use spending::Meter;

/// What an expression may refer to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Variables<'a> {
    pub(super) own: Option<(&'a Schema, &'a Value)>,
    pub(super) old: Old<'a>,
}

/// The value before the change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Old<'a> {
    #[default]
    Undeclared,
    There(&'a Value),
    Optional(Option<&'a Value>),
}

/// Why an evaluation has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// An error of the expression on this data; logic may make up for it.
    Fault(Arc<str>),
    /// It costs more than an evaluation may; nothing makes up for that.
    OverLimit,
}

impl Stop {
    fn fault(text: String) -> Self {
        Self::Fault(text.into())
    }

    fn no_overload() -> Self {
        Self::Fault("no such overload".into())
    }

    fn no_key(name: &str) -> Self {
        Self::fault(format!("no such key: {name}"))
    }
}

type Outcome<'a> = Result<Val<'a>, Stop>;

/// A finished evaluation.
#[derive(Debug)]
pub(super) struct Ran<T> {
    pub(super) result: Result<T, Stop>,
    /// What it cost, also when it failed.
    pub(super) spent: u64,
}

pub(super) fn run<'a, T>(
    expression: &'a IdedExpr,
    variables: Variables<'a>,
    read: impl FnOnce(&Val<'a>) -> T,
) -> Ran<T> {
    let mut interpreter = Interpreter::new(variables);
    let result = interpreter.eval(expression);
    Ran {
        result: result.map(|value| read(&value)),
        spent: interpreter.meter.spent(),
    }
}

struct Interpreter<'a> {
    scope: Vec<(&'a str, Val<'a>)>,
    meter: Meter,
    patterns: HashMap<String, Regex>,
}

/// The accumulator of a loop, a name nobody can write.
const ACCUMULATOR: &str = "@result";

impl<'a> Interpreter<'a> {
    fn new(variables: Variables<'a>) -> Self {
        let mut scope = Vec::with_capacity(8);
        if let Some((schema, value)) = variables.own {
            scope.push(("self", Val::given(value, Some(schema))));
        }
        let schema = variables.own.map(|(schema, _)| schema);
        match variables.old {
            Old::Undeclared => {}
            Old::There(value) => scope.push(("oldSelf", Val::given(value, schema))),
            Old::Optional(value) => {
                let value = value.map(|value| Val::given(value, schema));
                scope.push(("oldSelf", Val::optional(value)));
            }
        }
        Self {
            scope,
            meter: Meter::default(),
            patterns: HashMap::new(),
        }
    }

    fn eval(&mut self, expression: &'a IdedExpr) -> Outcome<'a> {
        match &expression.expr {
            Expr::Literal(value) => Ok(literal(value)),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.list(expression, list),
            Expr::Map(map) => self.map(map),
            Expr::Comprehension(made) => self.fold(made),
            Expr::Struct(_) | Expr::Unspecified => Err(Stop::no_overload()),
        }
    }

    fn boolean(&mut self, expression: &'a IdedExpr) -> Result<bool, Stop> {
        let value = self.eval(expression)?;
        value.as_bool().ok_or_else(Stop::no_overload)
    }

    fn variable(&self, name: &str) -> Option<&Val<'a>> {
        let mut known = self.scope.iter().rev();
        known.find(|(known, _)| *known == name).map(|(_, val)| val)
    }

    fn ident(&mut self, name: &str) -> Outcome<'a> {
        self.meter.spend(1)?;
        match self.variable(name) {
            Some(Val::Fault(text)) => Err(Stop::Fault(Arc::clone(text))),
            Some(value) => Ok(value.clone()),
            None if TYPE_NAMES.contains(&name) => Ok(calls::type_value(name)),
            None => Err(Stop::fault(format!("no such attribute(s): {name}"))),
        }
    }

    fn select(&mut self, select: &'a SelectExpr) -> Outcome<'a> {
        let operand = self.eval(&select.operand)?;
        if let Val::Optional(inner) = &operand {
            let found = inner.as_ref().and_then(|it| it.member(&select.field));
            return Ok(if select.test {
                Val::from(found.is_some())
            } else {
                Val::optional(found)
            });
        }
        if !operand.has_members() {
            return Err(Stop::no_overload());
        }
        let found = operand.member(&select.field);
        if select.test {
            return Ok(Val::from(found.is_some()));
        }
        self.meter.spend(1)?;
        found.ok_or_else(|| Stop::no_key(&select.field))
    }

    fn list(&mut self, whole: &IdedExpr, list: &'a ListExpr) -> Outcome<'a> {
        if !is_constant(whole) {
            self.meter.spend(10)?;
        }
        let mut items = Vec::with_capacity(list.elements.len());
        for (index, element) in list.elements.iter().enumerate() {
            let value = self.eval(element)?;
            if list.optional_indices.contains(&index) {
                if let Val::Optional(value) = value {
                    items.extend(value.map(|value| (*value).clone()));
                    continue;
                }
                return Err(Stop::no_overload());
            }
            items.push(value);
        }
        Ok(Val::list(items))
    }

    fn map(&mut self, map: &'a MapExpr) -> Outcome<'a> {
        self.meter.spend(30)?;
        let mut entries = BTreeMap::new();
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err(Stop::no_overload());
            };
            let key = operators::key(&self.eval(&entry.key)?)?;
            let value = self.eval(&entry.value)?;
            match value {
                Val::Optional(value) if entry.optional => {
                    entries.extend(value.map(|value| (key, (*value).clone())));
                }
                value => drop(entries.insert(key, value)),
            }
        }
        Ok(Val::Map(Rc::new(entries)))
    }

    fn call(&mut self, call: &'a CallExpr) -> Outcome<'a> {
        let name = call.func_name.as_str();
        match (name, &call.args[..]) {
            ("_&&_", [left, right]) => self.decide(left, right, false),
            ("_||_", [left, right]) => self.decide(left, right, true),
            ("_?_:_", [condition, yes, no]) => {
                let chosen = if self.boolean(condition)? { yes } else { no };
                self.eval(chosen)
            }
            ("@not_strictly_false", [it]) => {
                self.meter.spend(1)?;
                match self.boolean(it) {
                    Err(Stop::OverLimit) => Err(Stop::OverLimit),
                    result => Ok(Val::from(result.unwrap_or(true))),
                }
            }
            ("!_", [it]) => {
                self.meter.spend(1)?;
                Ok(Val::from(!self.boolean(it)?))
            }
            ("-_", [it]) => {
                self.meter.spend(1)?;
                operators::negate(&self.eval(it)?)
            }
            ("_+_", [left, right]) => self.add(left, right),
            ("_?._", [operand, field]) => {
                let (operand, field) = (self.eval(operand)?, self.eval(field)?);
                self.optional_index(&operand, &field)
            }
            ("_[?_]", [operand, at]) => {
                let (operand, at) = (self.eval(operand)?, self.eval(at)?);
                self.optional_index(&operand, &at)
            }
            ("@in", [item, within]) => {
                let (item, list) = (self.eval(item)?, self.eval(within)?);
                // A list of constants is a set Kubernetes looks things up in.
                if !is_constant(within) {
                    self.meter.spend(spending::searching(&list))?;
                }
                operators::contains(&list, &item).map(Val::from)
            }
            (
                "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" | "_-_" | "_*_" | "_/_" | "_%_"
                | "_[_]",
                [left, right],
            ) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                self.binary(name, &left, &right)
            }
            _ => self.function(call),
        }
    }

    /// `&&` is decided by `false`, `||` by `true`, on either side and whatever the other side is.
    fn decide(&mut self, left: &'a IdedExpr, right: &'a IdedExpr, by: bool) -> Outcome<'a> {
        let left = match self.boolean(left) {
            Err(Stop::OverLimit) => return Err(Stop::OverLimit),
            Ok(value) if value == by => return Ok(Val::from(by)),
            other => other,
        };
        let right = match self.boolean(right) {
            Err(Stop::OverLimit) => return Err(Stop::OverLimit),
            Ok(value) if value == by => return Ok(Val::from(by)),
            other => other,
        };
        left.and(right).map(Val::from)
    }

    fn add(&mut self, left: &'a IdedExpr, right: &'a IdedExpr) -> Outcome<'a> {
        // What a loop adds to is replaced by the sum at once: taken out, it need not be copied.
        let (left, right) = match &left.expr {
            Expr::Ident(name) if name == ACCUMULATOR => {
                let right = self.eval(right)?;
                self.meter.spend(1)?;
                let mut known = self.scope.iter_mut().rev();
                let found = known.find(|(known, _)| *known == ACCUMULATOR);
                let (_, value) = found.ok_or_else(Stop::no_overload)?;
                if let Val::Fault(text) = value {
                    return Err(Stop::Fault(Arc::clone(text)));
                }
                (std::mem::replace(value, Val::NULL), right)
            }
            _ => (self.eval(left)?, self.eval(right)?),
        };
        self.meter.spend(spending::adding(&left, &right))?;
        operators::add(left, right, &mut self.meter)
    }

    fn binary(&mut self, name: &str, left: &Val<'a>, right: &Val<'a>) -> Outcome<'a> {
        let cost = match name {
            "_==_" | "_!=_" => spending::comparing(left, right),
            "_<_" | "_<=_" | "_>_" | "_>=_" => spending::ordering(left, right),
            _ => 1,
        };
        self.meter.spend(cost)?;
        let ordered = |wanted: fn(Ordering) -> bool| {
            let order = operators::order(left, right)?;
            Ok(Val::from(order.is_some_and(wanted)))
        };
        match name {
            "_==_" => Ok(Val::from(operators::equal(left, right))),
            "_!=_" => Ok(Val::from(!operators::equal(left, right))),
            "_<_" => ordered(Ordering::is_lt),
            "_<=_" => ordered(Ordering::is_le),
            "_>_" => ordered(Ordering::is_gt),
            "_>=_" => ordered(Ordering::is_ge),
            "_[_]" => match left {
                Val::Optional(None) => Ok(Val::Optional(None)),
                Val::Optional(Some(inner)) => {
                    let found = operators::index(inner, right);
                    Ok(Val::optional(found.ok()))
                }
                _ => operators::index(left, right),
            },
            _ => operators::arithmetic(name, left, right),
        }
    }

    /// `a.?b` and `a[?b]`: what is there, if it is.
    fn optional_index(&mut self, operand: &Val<'a>, at: &Val<'a>) -> Outcome<'a> {
        self.meter.spend(1)?;
        let within = match operand {
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(inner)) => inner,
            other => other,
        };
        Ok(Val::optional(operators::index(within, at).ok()))
    }

    fn fold(&mut self, made: &'a ComprehensionExpr) -> Outcome<'a> {
        let range = self.eval(&made.iter_range)?;
        let initial = self.eval(&made.accu_init)?;
        let base = self.scope.len();
        self.scope.push((&made.accu_var, initial));
        let rounds = self.rounds(made, base, &range);
        let result = rounds.and_then(|()| self.eval(&made.result));
        self.scope.truncate(base);
        result
    }

    fn rounds(
        &mut self,
        made: &'a ComprehensionExpr,
        base: usize,
        range: &Val<'a>,
    ) -> Result<(), Stop> {
        let both = made.iter_var2.is_some();
        let mut round = |first: Val<'a>, second: Option<Val<'a>>| {
            if !self.boolean(&made.loop_cond)? {
                return Ok(false);
            }
            self.scope.push((&made.iter_var, first));
            if let (Some(name), Some(value)) = (&made.iter_var2, second) {
                self.scope.push((name, value));
            }
            let step = self.eval(&made.loop_step);
            self.scope.truncate(base + 1);
            self.scope[base].1 = match step {
                Ok(value) => value,
                Err(Stop::Fault(text)) => Val::Fault(text),
                Err(Stop::OverLimit) => return Err(Stop::OverLimit),
            };
            Ok(true)
        };
        match range {
            Val::List(list) => {
                for (index, item) in list.iter().enumerate() {
                    let index = || CelValue::Int(i64::try_from(index).unwrap_or(i64::MAX));
                    let on = if both {
                        round(Val::Plain(index()), Some(item))?
                    } else {
                        round(item, None)?
                    };
                    if !on {
                        break;
                    }
                }
            }
            Val::Object(members) => {
                for (name, value) in members.iter() {
                    if !round(Val::text(name), both.then_some(value))? {
                        break;
                    }
                }
            }
            Val::Map(map) => {
                for (key, value) in map.iter() {
                    let key = Val::Plain(CelValue::from(key));
                    if !round(key, both.then(|| value.clone()))? {
                        break;
                    }
                }
            }
            _ => return Err(Stop::no_overload()),
        }
        Ok(())
    }
}

fn literal(value: &LiteralValue) -> Val<'_> {
    Val::Plain(match value {
        LiteralValue::String(text) => return Val::Text(text.inner()),
        LiteralValue::Boolean(value) => CelValue::Bool(*value.inner()),
        LiteralValue::Double(value) => CelValue::Float(*value.inner()),
        LiteralValue::Int(value) => CelValue::Int(*value.inner()),
        LiteralValue::UInt(value) => CelValue::UInt(*value.inner()),
        LiteralValue::Null => CelValue::Null,
        LiteralValue::Bytes(bytes) => CelValue::Bytes(Arc::new(bytes.inner().to_vec())),
    })
}

/// Whether an expression is a literal, or a list of literals: made once, not at every evaluation.
fn is_constant(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => {
            list.optional_indices.is_empty() && list.elements.iter().all(is_constant)
        }
        _ => false,
    }
}

/// The wording of the reference implementation for the errors users meet.
fn go_error(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload | ExecutionError::UnsupportedBinaryOperator(..) => {
            "no such overload".to_owned()
        }
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        other => other.to_string(),
    }
}
