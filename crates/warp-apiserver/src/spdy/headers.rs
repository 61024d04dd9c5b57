//! Blocks of headers: compressed with a dictionary every SPDY/3 peer knows, one compression per direction
//! for the whole connection.

use std::collections::BTreeMap;
use std::io;
use std::sync::LazyLock;

use super::inflate::Inflate;

/// Names in lower case. Of several values of a name the first counts.
pub(crate) type Headers = BTreeMap<String, String>;

/// All headers of one block, unpacked.
const LONGEST_BLOCK: usize = 64 << 10;

/// Words, each with its length before it, then text: fixed by the protocol.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::new();
    for word in WORDS.split('|') {
        bytes.extend(u32::try_from(word.len()).unwrap_or_default().to_be_bytes());
        bytes.extend(word.as_bytes());
    }
    bytes.extend(TEXT.as_bytes());
    bytes
});

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The client's headers.
#[derive(Debug, Default)]
pub(super) struct Decoder(Option<Inflate>);

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Decoder {
    pub(super) fn block(&mut self, packed: &[u8]) -> io::Result<Headers> {
        let inflate = self.0.get_or_insert_with(|| Inflate::new(&DICTIONARY));
        let plain = inflate
            .block(packed, LONGEST_BLOCK)
            .map_err(|corrupt| broken(corrupt.0))?;
        read(&plain)
    }
}

fn read(plain: &[u8]) -> io::Result<Headers> {
    let mut rest = plain;
    let mut headers = Headers::new();
    let count = word(&mut rest)?;
    for _ in 0..count {
        let name = text(&mut rest)?.to_ascii_lowercase();
        let value = text(&mut rest)?;
        let first = value.split('\0').next().unwrap_or_default();
        headers.entry(name).or_insert_with(|| first.to_owned());
    }
    Ok(headers)
}

fn word(rest: &mut &[u8]) -> io::Result<u32> {
    let (four, after) = rest
        .split_first_chunk()
        .ok_or_else(|| broken("headers are too short"))?;
    *rest = after;
    Ok(u32::from_be_bytes(*four))
}

fn text(rest: &mut &[u8]) -> io::Result<String> {
    let length = usize::try_from(word(rest)?).unwrap_or(usize::MAX);
    let (text, after) = rest
        .split_at_checked(length)
        .ok_or_else(|| broken("headers are too short"))?;
    *rest = after;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Our headers, packed without making them smaller: they are a handful of bytes.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    begun: bool,
}

impl Encoder {
    pub(super) fn block(&mut self, headers: &Headers) -> Vec<u8> {
        let mut plain = length(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(length(text.len()));
            plain.extend(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(plain.len() + 16);
        if !self.begun {
            self.begun = true;
            packed.extend([0x78, 0x01]);
        }
        // Stored blocks, and an empty one: a reader gives out what it has when it meets that.
        for piece in plain.chunks(0xffff).chain([[].as_slice()]) {
            let size = u16::try_from(piece.len()).unwrap_or_default();
            packed.push(0);
            packed.extend(size.to_le_bytes());
            packed.extend((!size).to_le_bytes());
            packed.extend(piece);
        }
        packed
    }
}

fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).unwrap_or_default().to_be_bytes()
}

#[cfg(test)]
pub(super) fn dictionary() -> &'static [u8] {
    &DICTIONARY
}
