//! What is refused about literals once an expression is well typed: lists and maps of several types, and
//! texts that are no duration, time or pattern where one is called for.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{Expr, LiteralValue};
use regex::Regex;

use super::interpret::{self, Variables};
use super::problem::Problem;
use super::types::{Shape, Type};

/// Functions whose arguments may be lists of several types.
pub(super) const MIXED: &str = "format";

/// Complains about an element that is not of the first one's type.
pub(super) fn mismatch(first: &Shape<'_>, found: &Shape<'_>, id: u64) -> Option<Problem> {
    (!alike(&first.kind, &found.kind)).then(|| Problem {
        id,
        text: format!("expected type '{}' but found '{}'", first.kind, found.kind),
    })
}

/// Whether two types are one and the same; an empty list may be of any.
fn alike(left: &Type<'_>, right: &Type<'_>) -> bool {
    match (left, right) {
        (Type::Free, _) | (_, Type::Free) => true,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
            alike(&a.kind, &b.kind)
        }
        (Type::Map(ak, av), Type::Map(bk, bv)) => {
            alike(&ak.kind, &bk.kind) && alike(&av.kind, &bv.kind)
        }
        (Type::Object(a, _), Type::Object(b, _)) => std::ptr::eq(*a, *b) || a == b,
        (Type::Named(a), Type::Named(b)) => a == b,
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// Complains about a literal no call of that function can take.
pub(super) fn unusable(expression: &IdedExpr) -> Option<Problem> {
    let Expr::Call(call) = &expression.expr else {
        return None;
    };
    let argument = call.args.first()?;
    let Expr::Literal(LiteralValue::String(text)) = &argument.expr else {
        return None;
    };
    let usable = match call.func_name.as_str() {
        "matches" => Regex::new(text.inner()).is_ok(),
        "duration" | "timestamp" => {
            let ran = interpret::run(expression, Variables::default(), |_| ());
            ran.result.is_ok()
        }
        _ => true,
    };
    (!usable).then(|| Problem {
        id: argument.id,
        text: format!("invalid {} argument", call.func_name),
    })
}
