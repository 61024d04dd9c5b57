//! What is answered. There is no model: the answer says so and repeats the question, so that a client can see that its
//! words arrived. The same question has the same answer.

use super::words;

/// An answer in the pieces it is sent in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) pieces: Vec<String>,
    pub(super) finish: Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What a client asked of the answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits<'a> {
    pub(super) most: usize,
    pub(super) least: usize,
    pub(super) ignore_end: bool,
    pub(super) stops: &'a [String],
}

const FILLER: [&str; 8] = [" and", " so", " on", " with", " one", " more", " word", "."];

/// The answer to `question`.
pub(super) fn to(model: &str, question: &str, limits: &Limits<'_>) -> Answer {
    let text = format!(
        "This is {model}, simulated: no weights are loaded, and this answer is made up. You wrote: {}",
        question.trim()
    );
    let stop = limits
        .stops
        .iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| text.find(stop.as_str()))
        .min();
    let text = &text[..stop.unwrap_or(text.len())];
    let mut pieces: Vec<String> = words::pieces(text).into_iter().map(str::to_owned).collect();
    let least = if limits.ignore_end {
        limits.most
    } else {
        limits.least.min(limits.most)
    };
    while pieces.len() < least {
        pieces.push(FILLER[pieces.len() % FILLER.len()].to_owned());
    }
    let cut = pieces.len() > limits.most || limits.ignore_end;
    pieces.truncate(limits.most);
    // A stop at the very beginning leaves nothing to say, but a model has computed one token by then.
    if pieces.is_empty() {
        pieces.push(String::new());
    }
    Answer {
        pieces,
        finish: if cut { Finish::Length } else { Finish::Stop },
    }
}

/// A call of a tool with no arguments, in pieces.
pub(super) fn call() -> Answer {
    Answer {
        pieces: vec!["{".to_owned(), "}".to_owned()],
        finish: Finish::ToolCalls,
    }
}

/// A direction for a text: equal texts have equal ones, and its length is 1.
pub(super) fn embedding(tokens: &[u32], size: usize) -> Vec<f32> {
    let mut vector = vec![0.0_f32; size];
    for token in tokens {
        let mut state = u64::from(*token) | 1;
        for value in &mut vector {
            // xorshift: a fixed direction for every token.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let byte = u8::try_from(state >> 56).unwrap_or_default();
            *value += f32::from(byte) - 127.5;
        }
    }
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        for value in &mut vector {
            *value /= length;
        }
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_where_it_was_asked_to_be() {
        let limits = Limits {
            most: 3,
            ..Limits::default()
        };
        let answer = to("m", "hello", &limits);
        assert_eq!((answer.pieces.len(), answer.finish), (3, Finish::Length));
        let stops = ["simulated".to_owned()];
        let limits = Limits {
            most: 100,
            stops: &stops,
            ..Limits::default()
        };
        let answer = to("m", "hello", &limits);
        assert_eq!(answer.pieces.concat(), "This is m, ");
        assert_eq!(answer.finish, Finish::Stop);
    }

    #[test]
    fn an_answer_is_as_long_as_a_benchmark_asks() {
        let limits = Limits {
            most: 200,
            ignore_end: true,
            ..Limits::default()
        };
        let answer = to("m", "hello", &limits);
        assert_eq!((answer.pieces.len(), answer.finish), (200, Finish::Length));
    }

    #[test]
    fn near_texts_have_near_directions() {
        let of = |text: &str| embedding(&words::tokens(text), 64);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (cat, cats, tax) = (
            of("the cat sat on the mat"),
            of("the cat sat on the rug"),
            of("quarterly revenue forecast"),
        );
        assert!((dot(&cat, &cat) - 1.0).abs() < 1e-4);
        assert!(dot(&cat, &cats) > dot(&cat, &tax));
    }
}
