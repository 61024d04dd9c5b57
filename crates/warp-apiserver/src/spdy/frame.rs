//! Frames: eight bytes of head, then a payload. Payloads of data are not kept here.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadHalf};

use super::headers::{Decoder, Encoder, Headers};

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FIN: u8 = 1;
/// Control frames are small; one that is not is an attack.
const LONGEST_CONTROL: usize = 64 << 10;

/// Why a stream is refused.
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const REFUSED: u32 = 3;

#[derive(Debug)]
pub(super) enum Frame {
    Open {
        id: u32,
        fin: bool,
        headers: Headers,
    },
    /// Its payload follows.
    Data {
        id: u32,
        fin: bool,
        length: usize,
    },
    Reset {
        id: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// Settings, window updates, later headers: nothing here depends on them.
    Other,
}

pub(super) struct Reader<R> {
    from: ReadHalf<R>,
    headers: Decoder,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn number(bytes: &[u8]) -> io::Result<u32> {
    let four = bytes.get(..4).and_then(|four| four.try_into().ok());
    four.map(u32::from_be_bytes)
        .ok_or_else(|| broken("a frame is too short"))
}

impl<R: AsyncRead> Reader<R> {
    pub(super) fn new(from: ReadHalf<R>) -> Self {
        Self {
            from,
            headers: Decoder::default(),
        }
    }

    pub(super) async fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.from.read_exact(into).await.map(|_| ())
    }

    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        let mut head = [0; 8];
        self.read_exact(&mut head).await?;
        let [a, b, c, d, flags, rest @ ..] = head;
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if a & 0x80 == 0 {
            return Ok(Frame::Data {
                id: u32::from_be_bytes([a, b, c, d]),
                fin: flags & FIN != 0,
                length,
            });
        }
        if u16::from_be_bytes([a & 0x7f, b]) != VERSION {
            return Err(broken("a frame of another version"));
        }
        if length > LONGEST_CONTROL {
            return Err(broken("a control frame is too long"));
        }
        let mut payload = vec![0; length];
        self.read_exact(&mut payload).await?;
        self.control(u16::from_be_bytes([c, d]), flags, &payload)
    }

    fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<Frame> {
        let id = || number(payload).map(|id| id & 0x7fff_ffff);
        let rest = |from: usize| {
            payload
                .get(from..)
                .ok_or_else(|| broken("a frame is too short"))
        };
        Ok(match kind {
            SYN_STREAM => Frame::Open {
                id: id()?,
                fin: flags & FIN != 0,
                headers: self.headers.block(rest(10)?)?,
            },
            // One compression for all headers of a connection: these are read although nobody asks.
            SYN_REPLY | HEADERS => {
                self.headers.block(rest(4)?)?;
                Frame::Other
            }
            RST_STREAM => Frame::Reset { id: id()? },
            PING => Frame::Ping {
                id: number(payload)?,
            },
            GOAWAY => Frame::GoAway,
            _ => Frame::Other,
        })
    }
}

fn control(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u16(0x8000 | VERSION);
    frame.put_u16(kind);
    frame.put_u32(u32::try_from(payload.len()).unwrap_or_default());
    frame.put_slice(payload);
    frame.freeze()
}

/// The answers to the client's streams, in the order they are sent.
#[derive(Debug, Default)]
pub(super) struct Replies(Encoder);

impl Replies {
    /// Accepts a stream, without a header to say.
    pub(super) fn next(&mut self, id: u32) -> Bytes {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend(self.0.block(&Headers::new()));
        control(SYN_REPLY, &payload)
    }
}

pub(super) fn ping(id: u32) -> Bytes {
    control(PING, &id.to_be_bytes())
}

pub(super) fn reset(id: u32, why: u32) -> Bytes {
    let words = [id, why];
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    control(RST_STREAM, &payload)
}

pub(super) fn data(id: u32, payload: &[u8], fin: bool) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u32(id);
    let flags = if fin { u32::from(FIN) << 24 } else { 0 };
    frame.put_u32(flags | u32::try_from(payload.len()).unwrap_or_default());
    frame.put_slice(payload);
    frame.freeze()
}

/// The frames of a client, for tests.
#[cfg(test)]
pub(super) fn open(id: u32, block: &[u8]) -> Bytes {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend([0; 6]);
    payload.extend(block);
    control(SYN_STREAM, &payload)
}
