//! Type checks an expression against the schema it stands in, and estimates its worst cost on the
//! way: both walk the same tree and need the same facts.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, SelectExpr,
};
use serde_json::{Map, Value};

use super::problem::Problem;
use super::types::{Shape, Size, Type, fits};
use super::{cost, functions, literals};

/// What an expression may refer to.
pub(super) struct Environment<'a> {
    variables: Vec<(String, Shape<'a>)>,
}

/// What is known about a checked expression.
#[derive(Debug, Clone)]
pub(super) struct Checked<'a> {
    pub(super) shape: Shape<'a>,
    /// The most it may cost.
    pub(super) cost: u64,
}

type Outcome<'a> = Result<Checked<'a>, String>;

pub(super) const TYPE_NAMES: [&str; 9] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
];
/// Deeper expressions are refused rather than walked.
const DEEPEST: usize = 200;

impl<'a> Environment<'a> {
    /// The variables of a rule at a schema node.
    pub(super) fn new(schema: &'a Map<String, Value>, root: bool, optional_old: bool) -> Self {
        let own = Shape::of_schema(schema, root).unwrap_or_else(|| Shape::of(Type::Dyn));
        let old = if optional_old {
            Shape::optional(own.clone())
        } else {
            own.clone()
        };
        Self {
            variables: vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)],
        }
    }

    pub(super) fn check(&self, expression: &IdedExpr) -> Result<Checked<'a>, Vec<Problem>> {
        let mut walk = Walk {
            scope: self.variables.clone(),
            problems: Vec::new(),
            literals: Vec::new(),
            mixed: 0,
        };
        let checked = walk.visit(expression, 0);
        // Literals are looked at in what is well typed.
        if walk.problems.is_empty() {
            walk.problems = walk.literals;
        }
        if walk.problems.is_empty() {
            Ok(checked)
        } else {
            Err(walk.problems)
        }
    }
}

struct Walk<'a> {
    scope: Vec<(String, Shape<'a>)>,
    problems: Vec<Problem>,
    literals: Vec<Problem>,
    /// How many calls around this place take lists of several types.
    mixed: usize,
}

impl<'a> Walk<'a> {
    /// Notes what is wrong and goes on as if the expression could be anything.
    fn visit(&mut self, expression: &IdedExpr, depth: usize) -> Checked<'a> {
        self.shape(expression, depth).unwrap_or_else(|text| {
            let id = expression.id;
            self.problems.push(Problem { id, text });
            Checked {
                shape: Shape::of(Type::Dyn),
                cost: 0,
            }
        })
    }

    fn shape(&mut self, expression: &IdedExpr, depth: usize) -> Outcome<'a> {
        if depth > DEEPEST {
            return Err("expression is nested too deeply".to_owned());
        }
        match &expression.expr {
            Expr::Literal(value) => Ok(Checked {
                shape: literal(value),
                cost: 0,
            }),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select, depth),
            Expr::Call(call) => {
                self.literals.extend(literals::unusable(expression));
                let mixed = usize::from(call.func_name == literals::MIXED);
                self.mixed += mixed;
                let checked = self.call(call, depth);
                self.mixed -= mixed;
                checked
            }
            Expr::List(list) => Ok(self.list(list, depth)),
            Expr::Map(map) => self.map(map, depth),
            Expr::Comprehension(made) => Ok(self.comprehension(made, depth)),
            Expr::Struct(made) => Err(format!("undeclared reference to '{}'", made.type_name)),
            Expr::Unspecified => Err("unset expression".to_owned()),
        }
    }

    fn ident(&self, name: &str) -> Outcome<'a> {
        if let Some((_, shape)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return Ok(Checked {
                shape: shape.clone(),
                cost: 1,
            });
        }
        if TYPE_NAMES.contains(&name) {
            return Ok(Checked {
                shape: Shape::of(Type::Meta),
                cost: 1,
            });
        }
        Err(format!(
            "undeclared reference to '{name}' (in container '')"
        ))
    }

    fn select(&mut self, select: &SelectExpr, depth: usize) -> Outcome<'a> {
        let operand = self.visit(&select.operand, depth + 1);
        let member = operand.shape.member(&select.field)?;
        if select.test {
            // Looking whether a member is there is free.
            return Ok(Checked {
                shape: Shape::of(Type::Bool),
                cost: operand.cost,
            });
        }
        let step = matches!(
            operand.shape.kind,
            Type::Map(..) | Type::Object(..) | Type::Metadata | Type::Free
        );
        Ok(Checked {
            shape: member,
            cost: operand.cost.saturating_add(u64::from(step)),
        })
    }

    fn list(&mut self, list: &ListExpr, depth: usize) -> Checked<'a> {
        let mut item = Shape::sized(Type::Free, Size::up_to(0));
        let mut cost = 10u64;
        let mut first: Option<Shape<'a>> = None;
        let mut uneven = None;
        for (index, element) in list.elements.iter().enumerate() {
            let checked = self.visit(element, depth + 1);
            cost = cost.saturating_add(checked.cost);
            match &first {
                None => first = Some(checked.shape.clone()),
                Some(first) if uneven.is_none() && !list.optional_indices.contains(&index) => {
                    uneven = literals::mismatch(first, &checked.shape, element.id);
                }
                Some(_) => {}
            }
            item = if index == 0 {
                checked.shape
            } else {
                join(&item, &checked.shape)
            };
        }
        self.literals.extend(uneven.filter(|_| self.mixed == 0));
        let size = Size::exactly(list.elements.len() as u64);
        Checked {
            shape: Shape::list(item, size),
            cost,
        }
    }

    fn map(&mut self, map: &MapExpr, depth: usize) -> Outcome<'a> {
        let mut key = Shape::sized(Type::Free, Size::up_to(0));
        let mut value = key.clone();
        let mut cost = 30u64;
        let mut first: Option<(Shape<'a>, Shape<'a>)> = None;
        for (index, entry) in map.entries.iter().enumerate() {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err("a map entry is expected".to_owned());
            };
            let (k, v) = (
                self.visit(&entry.key, depth + 1),
                self.visit(&entry.value, depth + 1),
            );
            cost = cost.saturating_add(k.cost).saturating_add(v.cost);
            let (first_key, first_value) =
                first.get_or_insert_with(|| (k.shape.clone(), v.shape.clone()));
            if self.mixed == 0 {
                let uneven = [
                    literals::mismatch(first_key, &k.shape, entry.key.id),
                    literals::mismatch(first_value, &v.shape, entry.value.id)
                        .filter(|_| !entry.optional),
                ];
                self.literals.extend(uneven.into_iter().flatten());
            }
            key = if index == 0 {
                k.shape
            } else {
                join(&key, &k.shape)
            };
            value = if index == 0 {
                v.shape
            } else {
                join(&value, &v.shape)
            };
        }
        let size = Size::exactly(map.entries.len() as u64);
        let kind = Type::Map(key.into(), value.into());
        Ok(Checked {
            shape: Shape::sized(kind, size),
            cost,
        })
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Outcome<'a> {
        if let ("_?._", [operand, field]) = (call.func_name.as_str(), &call.args[..]) {
            return self.optional_select(operand, field, depth);
        }
        let mut arguments = Vec::with_capacity(call.args.len());
        let space = call
            .target
            .as_deref()
            .and_then(|target| match &target.expr {
                Expr::Ident(name)
                    if functions::NAMESPACES.contains(&name.as_str())
                        && !self.scope.iter().any(|(known, _)| known == name) =>
                {
                    Some(name)
                }
                _ => None,
            });
        let name = match space {
            Some(space) => format!("{space}.{}", call.func_name),
            None => call.func_name.clone(),
        };
        let target = match (&call.target, space) {
            (Some(target), None) => Some(self.visit(target, depth + 1)),
            _ => None,
        };
        for argument in &call.args {
            arguments.push(self.visit(argument, depth + 1));
        }
        let shapes: Vec<Shape<'a>> = arguments.iter().map(|a| a.shape.clone()).collect();
        let target_shape = target.as_ref().map(|target| &target.shape);
        let shape = match operator(&name, &shapes)? {
            Some(shape) => shape,
            None if !functions::exists(&name) => {
                return Err(format!(
                    "undeclared reference to '{name}' (in container '')"
                ));
            }
            None => functions::call(&name, target_shape, &shapes)
                .ok_or_else(|| no_overload(&name, target_shape, &shapes))?,
        };
        Ok(cost::of_call(&name, target.as_ref(), &arguments, shape))
    }

    /// `a.?b`: the member if it is there.
    fn optional_select(
        &mut self,
        operand: &IdedExpr,
        field: &IdedExpr,
        depth: usize,
    ) -> Outcome<'a> {
        let operand = self.visit(operand, depth + 1);
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
            return Err("a field name is expected".to_owned());
        };
        let member = operand.shape.member(name.inner())?;
        let shape = match member.kind {
            Type::Optional(_) => member,
            _ => Shape::optional(member),
        };
        Ok(Checked {
            shape,
            cost: operand.cost.saturating_add(1),
        })
    }

    fn comprehension(&mut self, made: &ComprehensionExpr, depth: usize) -> Checked<'a> {
        let range = self.visit(&made.iter_range, depth + 1);
        let init = self.visit(&made.accu_init, depth + 1);
        // `cel.bind` is a loop that never runs.
        let bind = matches!(&made.iter_range.expr, Expr::List(list) if list.elements.is_empty());
        let (first, second) = match (&range.shape.kind, &made.iter_var2) {
            (Type::List(item), None) => ((**item).clone(), None),
            (Type::List(item), Some(_)) => (Shape::of(Type::Int), Some((**item).clone())),
            (Type::Map(key, _), None) => ((**key).clone(), None),
            (Type::Map(key, value), Some(_)) => ((**key).clone(), Some((**value).clone())),
            (Type::Dyn | Type::Free, _) => (Shape::of(Type::Dyn), Some(Shape::of(Type::Dyn))),
            (other, _) => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a \
                     comprehension (must be list, map, or dynamic)"
                );
                let id = made.iter_range.id;
                self.problems.push(Problem { id, text });
                (Shape::of(Type::Dyn), Some(Shape::of(Type::Dyn)))
            }
        };
        let before = self.scope.len();
        self.scope.push((made.accu_var.clone(), init.shape.clone()));
        let accumulator = self.scope.len() - 1;
        if !bind {
            self.scope.push((made.iter_var.clone(), first));
            if let (Some(name), Some(shape)) = (&made.iter_var2, second) {
                self.scope.push((name.clone(), shape));
            }
        }
        let condition = self.visit(&made.loop_cond, depth + 1);
        let step = if bind {
            None
        } else {
            Some(self.visit(&made.loop_step, depth + 1))
        };
        self.scope.truncate(accumulator + 1);
        if let Some(step) = &step {
            let mut shape = join(&init.shape, &step.shape);
            if matches!(shape.kind, Type::List(_) | Type::Map(..)) {
                shape.size = range.shape.size;
            }
            self.scope[accumulator].1 = shape;
        }
        let result = self.visit(&made.result, depth + 1);
        self.scope.truncate(before);
        let looped = step.map_or(0, |step| {
            let once = step.cost.saturating_add(condition.cost);
            range.shape.size.max.saturating_mul(once)
        });
        let cost = [range.cost, init.cost, looped, result.cost]
            .into_iter()
            .fold(0u64, u64::saturating_add);
        Checked {
            shape: result.shape,
            cost,
        }
    }
}

fn literal<'a>(value: &LiteralValue) -> Shape<'a> {
    match value {
        LiteralValue::Boolean(_) => Shape::of(Type::Bool),
        LiteralValue::Double(_) => Shape::of(Type::Double),
        LiteralValue::Int(_) => Shape::of(Type::Int),
        LiteralValue::UInt(_) => Shape::of(Type::Uint),
        LiteralValue::Null => Shape::of(Type::Null),
        LiteralValue::String(text) => {
            let length = text.inner().chars().count() as u64;
            Shape::sized(Type::String, Size::exactly(length))
        }
        LiteralValue::Bytes(bytes) => {
            Shape::sized(Type::Bytes, Size::exactly(bytes.inner().len() as u64))
        }
    }
}

/// One shape for two values that may both occur.
fn join<'a>(left: &Shape<'a>, right: &Shape<'a>) -> Shape<'a> {
    let size = left.size.union(right.size);
    let kind = match (&left.kind, &right.kind) {
        (Type::Free, other) => return Shape::sized(other.clone(), right.size),
        (other, Type::Free | Type::Null) | (Type::Null, other) => other.clone(),
        (Type::List(a), Type::List(b)) => Type::List(join(a, b).into()),
        (Type::Map(ak, av), Type::Map(bk, bv)) => {
            Type::Map(join(ak, bk).into(), join(av, bv).into())
        }

        (a, b) if fits(a, b) => a.clone(),
        _ => Type::Dyn,
    };
    Shape::sized(kind, size)
}

fn no_overload(name: &str, target: Option<&Shape<'_>>, arguments: &[Shape<'_>]) -> String {
    let kinds: Vec<String> = arguments.iter().map(|a| a.kind.to_string()).collect();
    let applied = match target {
        Some(target) => format!("{}.({})", target.kind, kinds.join(", ")),
        None => format!("({})", kinds.join(", ")),
    };
    format!("found no matching overload for '{name}' applied to '{applied}'")
}

/// The result of an operator; `Ok(None)` when the name is a function's.
fn operator<'a>(name: &str, arguments: &[Shape<'a>]) -> Result<Option<Shape<'a>>, String> {
    let fail = || no_overload(name, None, arguments);
    let is_bool = |shape: &Shape<'_>| fits(&Type::Bool, &shape.kind);
    let boolean = || Ok(Some(Shape::of(Type::Bool)));
    match (name, arguments) {
        ("_&&_" | "_||_", [a, b]) if is_bool(a) && is_bool(b) => boolean(),
        ("!_" | "@not_strictly_false", [a]) if is_bool(a) => boolean(),
        ("_?_:_", [condition, yes, no]) if is_bool(condition) && fits(&yes.kind, &no.kind) => {
            Ok(Some(join(yes, no)))
        }
        ("_==_" | "_!=_", [a, b]) if fits(&a.kind, &b.kind) => boolean(),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) if ordered(&a.kind, &b.kind) => boolean(),
        ("-_", [a]) if matches!(a.kind, Type::Int | Type::Double | Type::Dyn) => {
            Ok(Some(Shape::of(a.kind.clone())))
        }
        ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [a, b]) => {
            arithmetic(name, a, b).map(Some).ok_or_else(fail)
        }
        ("@in", [item, within]) => match &within.kind {
            Type::List(known) if fits(&known.kind, &item.kind) => boolean(),
            Type::Map(key, _) if fits(&key.kind, &item.kind) => boolean(),
            Type::Dyn | Type::Free => boolean(),
            _ => Err(fail()),
        },
        ("_[_]", [within, index]) => element(within, index).map(Some).ok_or_else(fail),
        ("_[?_]", [within, index]) => {
            let inner = match &within.kind {
                Type::Optional(inner) => inner.as_ref().clone(),
                _ => within.clone(),
            };
            let found = element(&inner, index).ok_or_else(fail)?;
            Ok(Some(Shape::optional(found)))
        }
        (
            "_&&_"
            | "_||_"
            | "!_"
            | "@not_strictly_false"
            | "_?_:_"
            | "_==_"
            | "_!=_"
            | "_<_"
            | "_<=_"
            | "_>_"
            | "_>=_"
            | "-_",
            _,
        ) => Err(fail()),
        _ => Ok(None),
    }
}

fn element<'a>(within: &Shape<'a>, index: &Shape<'a>) -> Option<Shape<'a>> {
    match &within.kind {
        Type::List(item) if fits(&Type::Int, &index.kind) => Some(item.as_ref().clone()),
        Type::Map(key, value) if fits(&key.kind, &index.kind) => Some(value.as_ref().clone()),
        Type::Dyn | Type::Free => Some(Shape::of(Type::Dyn)),
        Type::Optional(inner) => element(inner, index).map(Shape::optional),
        _ => None,
    }
}

fn is_number(kind: &Type<'_>) -> bool {
    matches!(kind, Type::Int | Type::Uint | Type::Double)
}

/// Numbers compare across their types; the rest with their own.
fn ordered(left: &Type<'_>, right: &Type<'_>) -> bool {
    let comparable = |kind: &Type<'_>| {
        is_number(kind)
            || matches!(
                kind,
                Type::Bool
                    | Type::String
                    | Type::Bytes
                    | Type::Duration
                    | Type::Timestamp
                    | Type::Dyn
            )
    };
    comparable(left)
        && comparable(right)
        && (fits(left, right) || (is_number(left) && is_number(right)))
}

fn arithmetic<'a>(name: &str, a: &Shape<'a>, b: &Shape<'a>) -> Option<Shape<'a>> {
    use Type::{Bytes, Double, Duration, Dyn, Free, Int, List, String, Timestamp, Uint};
    let kind = match (name, &a.kind, &b.kind) {
        (_, Dyn | Free, _) | (_, _, Dyn | Free) => Dyn,
        ("_%_", Double, _) => return None,
        (_, Int, Int) => Int,
        (_, Uint, Uint) => Uint,
        (_, Double, Double) => Double,
        ("_+_", String, String) => return Some(Shape::sized(String, a.size.plus(b.size))),
        ("_+_", Bytes, Bytes) => return Some(Shape::sized(Bytes, a.size.plus(b.size))),
        ("_+_", List(x), List(y)) if fits(&x.kind, &y.kind) => {
            return Some(Shape::sized(List(join(x, y).into()), a.size.plus(b.size)));
        }
        ("_+_", Duration, Timestamp) | ("_+_" | "_-_", Timestamp, Duration) => Timestamp,
        ("_+_" | "_-_", Duration, Duration) | ("_-_", Timestamp, Timestamp) => Duration,
        _ => return None,
    };
    Some(Shape::of(kind))
}
