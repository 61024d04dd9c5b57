//! Text as tokens: pieces of at most four letters, so that a thousand characters are about as many tokens as for a
//! real model. Joined again they are the text.

/// The pieces of `text`, in order and without a gap.
pub(super) fn pieces(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut length = 0;
    let mut after_letter = false;
    for (at, letter) in text.char_indices() {
        let is_letter = letter.is_alphanumeric();
        let goes_on = length == 0 || (is_letter && length < 4 && (after_letter || length == 1));
        if !goes_on {
            found.push(&text[start..at]);
            start = at;
            length = 0;
        }
        // A space belongs to the word after it; anything else stands alone.
        after_letter = is_letter;
        length += 1;
        if !is_letter && letter != ' ' {
            found.push(&text[start..at + letter.len_utf8()]);
            start = at + letter.len_utf8();
            length = 0;
        }
    }
    if start < text.len() {
        found.push(&text[start..]);
    }
    found
}

/// A piece as a number.
pub(super) fn token(piece: &str) -> u32 {
    piece.bytes().fold(0x811c_9dc5, |name, byte| {
        (name ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

pub(super) fn tokens(text: &str) -> Vec<u32> {
    pieces(text).into_iter().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text_again() {
        for text in [
            "",
            " ",
            "Hello, world!",
            "a  b\n\nc",
            "Grüße aus Köln — 你好",
            "the quick brown fox jumps",
            "x=1;y=[2,3]",
        ] {
            assert_eq!(pieces(text).concat(), text);
        }
        assert_eq!(pieces("the quick fox"), ["the", " qui", "ck", " fox"]);
    }

    #[test]
    fn equal_beginnings_are_equal_tokens() {
        let (one, two) = (
            tokens("You are kind. First"),
            tokens("You are kind. Second"),
        );
        assert_eq!(one[..5], two[..5]);
        assert_ne!(one, two);
    }
}
