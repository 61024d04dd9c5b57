//! How deep an expression may nest, told from its text alone.
//!
//! The parser, the checker and the interpreter recurse, and the stack of a request is small. So the
//! depth of the tree is bounded before there is one: brackets, and operators chained between them.

/// Brackets inside each other.
const BRACKETS: usize = 24;
/// Operators that may nest in each other, counted along the deepest path.
const OPERATORS: usize = 100;

/// Below this a tree is walked on the stack of the request.
const SHALLOW: Depth = Depth {
    brackets: 6,
    operators: 16,
};
/// Stack for walking a deep tree.
const STACK: usize = 64 << 20;

const FAILED: &str = "failed to read or evaluate the expression";

/// How deep the tree of an expression may be, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depth {
    brackets: usize,
    operators: usize,
}

impl Depth {
    pub(super) fn too_deep(self) -> bool {
        self.brackets > BRACKETS || self.operators > OPERATORS
    }

    /// Does something that walks the tree where there is stack enough; an error when there is none, or
    /// when the library that does it panics: no expression may take a request down.
    pub(super) fn walk<T: Send>(self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        if self.brackets <= SHALLOW.brackets && self.operators <= SHALLOW.operators {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            return done.map_err(|_| FAILED.to_owned());
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            let running = thread.spawn_scoped(scope, work).map_err(|error| {
                format!("failed to start a thread for a deep expression: {error}")
            })?;
            let ended = running.join();
            ended.map_err(|_| FAILED.to_owned())
        })
    }
}

/// The depth of an expression's tree. Errs on the side of more: it counts the operators of a chain as
/// if each nested in the next, which left-associative ones do.
pub(super) fn of(text: &str) -> Depth {
    let mut deepest = Depth {
        brackets: 0,
        operators: 0,
    };
    // Operators seen at every open level since the last comma.
    let mut open: Vec<usize> = vec![0];
    let mut total = 0;
    let mut bytes = text.bytes().peekable();
    let mut quote: Option<u8> = None;
    while let Some(byte) = bytes.next() {
        if let Some(end) = quote {
            match byte {
                b'\\' => drop(bytes.next()),
                _ if byte == end => quote = None,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' | b'\'' => quote = Some(byte),
            b'(' | b'[' | b'{' => {
                open.push(0);
                deepest.brackets = deepest.brackets.max(open.len() - 1);
            }
            b')' | b']' | b'}' if open.len() > 1 => total -= open.pop().unwrap_or_default(),
            b',' => {
                if let Some(last) = open.last_mut() {
                    total -= *last;
                    *last = 0;
                }
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'?' | b'!' | b'.' | b'&' | b'|' | b'<' | b'>'
            | b'=' => {
                // `&&`, `<=` and their like are one operator; `!!` and `--` are two.
                let double = matches!(byte, b'&' | b'|' | b'=' | b'<' | b'>' | b'!');
                if double
                    && bytes.peek()
                        == Some(&if byte == b'&' || byte == b'|' {
                            byte
                        } else {
                            b'='
                        })
                {
                    bytes.next();
                }
                total += 1;
                if let Some(last) = open.last_mut() {
                    *last += 1;
                }
                deepest.operators = deepest.operators.max(total);
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::super::interpret::Variables;
    use super::of;

    /// Compiles and runs on the smallest stack a request may get; whether it compiled.
    fn runs(text: String) -> bool {
        let run = move || match compile(&text) {
            Ok(program) => {
                let _ = program.execute(Variables::default(), |_| ());
                true
            }
            Err(_) => false,
        };
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(run)
            .expect("a thread")
            .join()
            .expect("the stack does not overflow")
    }

    #[test]
    fn what_is_just_allowed_fits_the_stack_and_more_is_refused() {
        let brackets = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(runs(brackets(6)) && runs(brackets(24)));
        assert!(!runs(brackets(25)) && !runs(brackets(30_000)));
        let chain = |length: usize| format!("1{}", "+1".repeat(length));
        assert!(runs(chain(16)) && runs(chain(100)));
        assert!(!runs(chain(101)) && !runs(chain(30_000)));
        let unary = |length: usize| format!("{}true", "!".repeat(length));
        assert!(runs(unary(100)));
        assert!(!runs(unary(60_000)));
        let ternary = |length: usize| format!("{}1", "true ? 1 : ".repeat(length));
        assert!(runs(ternary(20)));
        assert!(!runs(ternary(5_000)));
        let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(runs(lists(24)));
        assert!(!runs(lists(30_000)));
        assert!(!runs("a.".repeat(30_000) + "b"));
    }

    #[test]
    fn long_expressions_that_do_not_nest_are_allowed() {
        assert!(!of(&format!("[{}].size() > 0", "a.b + 1, ".repeat(5_000))).too_deep());
        assert!(!of(&format!("self != '{}'", "((+-".repeat(5_000))).too_deep());
        assert!(!of(r#"self.matches("^\\(\"") && self.size() <= 3"#).too_deep());
    }
}
