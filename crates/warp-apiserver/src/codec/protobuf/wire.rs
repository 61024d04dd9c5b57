//! The wire format: tags, varints, lengths. Never reads past its bytes.

use super::DecodeError;

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// One field's value as it is on the wire.
#[derive(Debug)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

const SHORT: DecodeError = DecodeError::Malformed("the body ends in the middle of a field");

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(SHORT)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Malformed("a number is too long"))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        if length > self.rest.len() {
            return Err(SHORT);
        }
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(taken)
    }

    /// The next field with its number; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3)
            .ok()
            .filter(|number| *number > 0)
            .ok_or(DecodeError::Malformed("a field has no valid number"))?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed(little_endian(self.take(8)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| SHORT)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(little_endian(self.take(4)?)),
            _ => return Err(DecodeError::Malformed("a field has an unknown wire type")),
        };
        Ok(Some((number, value)))
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

const MISMATCH: DecodeError = DecodeError::Malformed("a field has another type than expected");

impl<'a> Wire<'a> {
    pub(super) fn bytes(&self) -> Result<&'a [u8], DecodeError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(MISMATCH),
        }
    }

    pub(super) fn text(&self) -> Result<String, DecodeError> {
        std::str::from_utf8(self.bytes()?)
            .map(str::to_owned)
            .map_err(|_| DecodeError::Malformed("a text is not UTF-8"))
    }

    pub(super) fn varint(&self) -> Result<u64, DecodeError> {
        match self {
            Self::Varint(value) => Ok(*value),
            _ => Err(MISMATCH),
        }
    }

    pub(super) fn fixed(&self) -> Result<u64, DecodeError> {
        match self {
            Self::Fixed(value) => Ok(*value),
            _ => Err(MISMATCH),
        }
    }
}
