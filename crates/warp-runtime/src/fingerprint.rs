//! A short stable number for a text: the same in every process and version, so that names and memories made from it
//! survive a restart. FNV-1a; not for secrets.

/// The fingerprint of several texts in this order.
pub(crate) fn of(texts: &[&str]) -> u64 {
    let mut print: u64 = 0xcbf2_9ce4_8422_2325;
    for text in texts {
        // The separator keeps ("ab", "c") apart from ("a", "bc").
        for byte in text.bytes().chain([0xff]) {
            print = (print ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    print
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_by_where_they_end() {
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}
