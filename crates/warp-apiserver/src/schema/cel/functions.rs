//! The functions expressions may call, by signature.
//!
//! `T.name(A) R` is a method of `T`; upper-case letters stand for any type, the same one each time.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::types::{Shape, Size, Type, fits};

const SIGNATURES: &str = "
size(string) int|size(bytes) int|size(list<A>) int|size(map<A,B>) int
string.size() int|bytes.size() int|list<A>.size() int|map<A,B>.size() int
string.contains(string) bool|string.startsWith(string) bool|string.endsWith(string) bool
string.matches(string) bool|matches(string,string) bool
int(int) int|int(uint) int|int(double) int|int(string) int|int(timestamp) int|int(duration) int
uint(uint) uint|uint(int) uint|uint(double) uint|uint(string) uint
double(double) double|double(int) double|double(uint) double|double(string) double
string(string) string|string(int) string|string(uint) string|string(double) string
string(bool) string|string(bytes) string|string(timestamp) string|string(duration) string
string(ip) string|string(cidr) string
bytes(bytes) bytes|bytes(string) bytes|bool(bool) bool|bool(string) bool
duration(duration) duration|duration(string) duration|duration(int) duration
timestamp(timestamp) timestamp|timestamp(string) timestamp|timestamp(int) timestamp
dyn(A) dyn|type(A) type
timestamp.getFullYear() int|timestamp.getMonth() int|timestamp.getDayOfYear() int
timestamp.getDayOfMonth() int|timestamp.getDate() int|timestamp.getDayOfWeek() int
timestamp.getHours() int|timestamp.getMinutes() int|timestamp.getSeconds() int
timestamp.getMilliseconds() int
timestamp.getFullYear(string) int|timestamp.getMonth(string) int|timestamp.getDayOfYear(string) int
timestamp.getDayOfMonth(string) int|timestamp.getDate(string) int|timestamp.getDayOfWeek(string) int
timestamp.getHours(string) int|timestamp.getMinutes(string) int|timestamp.getSeconds(string) int
timestamp.getMilliseconds(string) int
duration.getHours() int|duration.getMinutes() int|duration.getSeconds() int
duration.getMilliseconds() int
string.charAt(int) string|string.indexOf(string) int|string.indexOf(string,int) int
string.lastIndexOf(string) int|string.lastIndexOf(string,int) int
string.lowerAscii() string|string.upperAscii() string|string.trim() string|string.reverse() string
string.replace(string,string) string|string.replace(string,string,int) string
string.split(string) list<string>|string.split(string,int) list<string>
string.substring(int) string|string.substring(int,int) string
list<string>.join() string|list<string>.join(string) string
string.format(list<dyn>) string|strings.quote(string) string
list<A>.isSorted() bool|list<A>.sum() A|list<A>.min() A|list<A>.max() A
list<A>.indexOf(A) int|list<A>.lastIndexOf(A) int
string.find(string) string|string.findAll(string) list<string>|string.findAll(string,int) list<string>
url(string) url|isURL(string) bool|url.getScheme() string|url.getHost() string
url.getHostname() string|url.getPort() string|url.getEscapedPath() string
url.getQuery() map<string,list<string>>
ip(string) ip|isIP(string) bool|ip.isCanonical(string) bool|ip.family() int
ip.isUnspecified() bool|ip.isLoopback() bool|ip.isLinkLocalMulticast() bool
ip.isLinkLocalUnicast() bool|ip.isGlobalUnicast() bool
cidr(string) cidr|isCIDR(string) bool|cidr.containsIP(ip) bool|cidr.containsIP(string) bool
cidr.containsCIDR(cidr) bool|cidr.containsCIDR(string) bool|cidr.ip() ip|cidr.masked() cidr
cidr.prefixLength() int
quantity(string) quantity|isQuantity(string) bool|quantity.isInteger() bool
quantity.asInteger() int|quantity.asApproximateFloat() double|quantity.sign() int
quantity.add(quantity) quantity|quantity.add(int) quantity|quantity.sub(quantity) quantity
quantity.sub(int) quantity|quantity.isLessThan(quantity) bool|quantity.isGreaterThan(quantity) bool
quantity.compareTo(quantity) int
semver(string) semver|semver(string,bool) semver|isSemver(string) bool|isSemver(string,bool) bool
semver.major() int|semver.minor() int|semver.patch() int|semver.isLessThan(semver) bool
semver.isGreaterThan(semver) bool|semver.compareTo(semver) int
format.dns1123Label() format|format.dns1123Subdomain() format|format.dns1035Label() format
format.qualifiedName() format|format.dns1123LabelPrefix() format
format.dns1123SubdomainPrefix() format|format.dns1035LabelPrefix() format
format.labelValue() format|format.uri() format|format.uuid() format|format.byte() format
format.date() format|format.datetime() format|format.named(string) optional<format>
format.validate(string) optional<list<string>>
sets.contains(list<A>,list<A>) bool|sets.equivalent(list<A>,list<A>) bool
sets.intersects(list<A>,list<A>) bool
optional.of(A) optional<A>|optional.ofNonZeroValue(A) optional<A>|optional.none() optional<A>
optional<A>.hasValue() bool|optional<A>.value() A|optional<A>.or(optional<A>) optional<A>
optional<A>.orValue(A) A
base64.encode(bytes) string|base64.decode(string) bytes|jsonpatch.escapeKey(string) string
math.ceil(double) double|math.floor(double) double|math.round(double) double
math.trunc(double) double|math.abs(int) int|math.abs(double) double|math.sign(int) int
math.sign(double) double|math.isNaN(double) bool|math.isInf(double) bool|math.isFinite(double) bool
math.greatest(A) A|math.greatest(A,A) A|math.greatest(A,A,A) A|math.greatest(A,A,A,A) A
math.least(A) A|math.least(A,A) A|math.least(A,A,A) A|math.least(A,A,A,A) A
";

/// Names that begin a function's name rather than being a variable.
pub(super) const NAMESPACES: [&str; 9] = [
    "format",
    "sets",
    "optional",
    "base64",
    "math",
    "strings",
    "jsonpatch",
    "ip",
    "cel",
];

#[derive(Debug, Clone)]
enum Pattern {
    Any(char),
    Plain(Type<'static>),
    List(Box<Self>),
    Map(Box<Self>, Box<Self>),
    Optional(Box<Self>),
}

#[derive(Debug)]
struct Signature {
    target: Option<Pattern>,
    arguments: Vec<Pattern>,
    result: Pattern,
}

static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Signature>>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Vec<Signature>> = HashMap::new();
    for text in SIGNATURES
        .split(['|', '\n'])
        .filter(|text| !text.is_empty())
    {
        if let Some((name, signature)) = parse(text) {
            functions.entry(name).or_default().push(signature);
        }
    }
    functions
});

fn parse(text: &'static str) -> Option<(&'static str, Signature)> {
    let (head, rest) = text.split_once('(')?;
    let (arguments, result) = rest.split_once(") ")?;
    let arguments = split(arguments).into_iter().map(pattern).collect();
    let (target, name) = match head.rsplit_once('.') {
        Some((space, name)) if is_namespaced(space, name) => (None, head),
        Some((target, name)) => (Some(pattern(target)), name),
        None => (None, head),
    };
    Some((
        name,
        Signature {
            target,
            arguments,
            result: pattern(result),
        },
    ))
}

/// `ip` and `format` are types and namespaces: which one depends on the function.
fn is_namespaced(space: &str, name: &str) -> bool {
    match space {
        "ip" => name == "isCanonical",
        "format" => name != "validate",
        space => NAMESPACES.contains(&space),
    }
}

/// Splits at commas outside of angle brackets.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (index, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

fn pattern(text: &'static str) -> Pattern {
    let inner = |prefix: &str| {
        text.strip_prefix(prefix)
            .and_then(|rest| rest.strip_suffix('>'))
    };
    if let Some(item) = inner("list<") {
        return Pattern::List(Box::new(pattern(item)));
    }
    if let Some(value) = inner("optional<") {
        return Pattern::Optional(Box::new(pattern(value)));
    }
    if let Some(both) = inner("map<")
        && let [key, value] = split(both)[..]
    {
        return Pattern::Map(Box::new(pattern(key)), Box::new(pattern(value)));
    }
    Pattern::Plain(match text {
        "A" => return Pattern::Any('A'),
        "B" => return Pattern::Any('B'),
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "type" => Type::Meta,
        "dyn" => Type::Dyn,
        other => Type::Named(other),
    })
}

type Bindings<'a> = HashMap<char, Shape<'a>>;

fn matches<'a>(pattern: &Pattern, shape: &Shape<'a>, bindings: &mut Bindings<'a>) -> bool {
    if matches!(shape.kind, Type::Dyn | Type::Free) {
        return true;
    }
    match (pattern, &shape.kind) {
        (Pattern::Any(name), kind) => {
            if let Some(known) = bindings.get(name) {
                return fits(&known.kind, kind);
            }
            bindings.insert(*name, shape.clone());
            true
        }
        (Pattern::Plain(expected), kind) => fits(expected, kind),
        (Pattern::List(item), Type::List(found)) => matches(item, found, bindings),
        (Pattern::Map(key, value), Type::Map(k, v)) => {
            matches(key, k, bindings) && matches(value, v, bindings)
        }
        (Pattern::Optional(value), Type::Optional(found)) => matches(value, found, bindings),
        _ => false,
    }
}

fn build<'a>(pattern: &Pattern, bindings: &Bindings<'a>) -> Shape<'a> {
    match pattern {
        Pattern::Any(name) => bindings
            .get(name)
            .cloned()
            .unwrap_or_else(|| Shape::of(Type::Dyn)),
        Pattern::Plain(kind) => Shape::of(kind.clone()),
        Pattern::List(item) => Shape::list(build(item, bindings), Size::UNKNOWN),
        Pattern::Map(key, value) => Shape::of(Type::Map(
            Arc::new(build(key, bindings)),
            Arc::new(build(value, bindings)),
        )),
        Pattern::Optional(value) => Shape::optional(build(value, bindings)),
    }
}

/// Whether anything of that name can be called.
pub(super) fn exists(name: &str) -> bool {
    FUNCTIONS.contains_key(name)
}

/// The result of a call; `None` when no signature takes these arguments.
pub(super) fn call<'a>(
    name: &str,
    target: Option<&Shape<'a>>,
    arguments: &[Shape<'a>],
) -> Option<Shape<'a>> {
    FUNCTIONS.get(name)?.iter().find_map(|signature| {
        let mut bindings = Bindings::new();
        let target_fits = match (&signature.target, target) {
            (None, None) => true,
            (Some(pattern), Some(shape)) => matches(pattern, shape, &mut bindings),
            _ => false,
        };
        let fits = target_fits
            && signature.arguments.len() == arguments.len()
            && signature
                .arguments
                .iter()
                .zip(arguments)
                .all(|(pattern, shape)| matches(pattern, shape, &mut bindings));
        fits.then(|| build(&signature.result, &bindings))
    })
}
