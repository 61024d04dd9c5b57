//! The framing against what real compressors make, against itself, and against noise.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::headers::{Decoder, Encoder, dictionary};
use super::inflate::Inflate;
use super::{Connection, Headers, frame};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    owned.collect()
}

/// Three blocks of one stream, as zlib packs them with the dictionary.
const PACKED: [&str; 3] = [
    "78f9e3c6a7c202a62346703a2b294a4dcc851625aca9a08006000000ffff",
    "02a5474ca9e21260768194d845e0cc6161606100a4398b20319c094af98c0600000000ffff",
    "c2aa1954442512d60b000000ffff",
];

#[test]
fn headers_packed_by_zlib_are_read_one_block_after_the_other() {
    assert_eq!(dictionary().len(), 1423);
    let mut decoder = Decoder::default();
    let read: Vec<Headers> = PACKED
        .iter()
        .map(|block| decoder.block(&bytes(block)).unwrap())
        .collect();
    let expected = [
        headers(&[("streamtype", "error")]),
        headers(&[
            ("streamtype", "stdin"),
            ("port", "8080"),
            ("requestid", "0"),
        ]),
        headers(&[("streamtype", "data"), ("port", "8080"), ("requestid", "0")]),
    ];
    assert_eq!(read, expected);
}

#[test]
fn codes_made_for_a_text_are_read() {
    let packed = "78da1491c901002108035b496b5c72f6ffdeec4b459449627da7a1755593e75a92c9926cc59eb73e1119488ee70a9c6df0e7c34d4862d46643f7ed82278fe842b694ef658e3deccd3ead819e215fad94c476376f0d2ee780275ebf8a41afe42dd87aac4abd8623ebe513a08f4dcd176368d3c3858c2a3fbc0b0fbdb6176a16b00962d5be2a95c84761a1b1f04e714993b55a4cc287d3ca3114d8f7665236cc255423d6b2c304d2de65b74d1bfca9f7647be964a0e4758698bfebb3971ea3143328f2eb0a6928328e3ae2bda7e17d5bd6381a9b9a67f6b4fb5229b4355e34b42845427a44933bf7eb342d1bb7d5cc4320b608327f3847375f51a3eaebe20492606b5efc939dc0fc8eb43dcf89fa8ca8c12a38b6d5ff045203ba2a237147cf4cc155c1847e40e60b1ae186152ab9c1ae5b24e823233f9dba2454d18e7c16cc63f2030000ffff";
    let plain = Inflate::new(b"").block(&bytes(packed), 1000).unwrap();
    assert_eq!(plain.len(), 600);
    assert!(plain.starts_with(b"cillbebhlhhjgldbhaggillakhekldibfaaaj ag"));
    let too_small = Inflate::new(b"").block(&bytes(packed), 599);
    assert!(too_small.is_err());
}

proptest! {
    #[test]
    fn what_we_pack_is_what_is_read(blocks in prop::collection::vec(prop::collection::btree_map("[a-z]{1,9}", "[ -~]{0,40}", 0..9), 1..5)) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for block in blocks {
            prop_assert_eq!(decoder.block(&encoder.block(&block)).unwrap(), block);
        }
    }

    #[test]
    fn noise_is_refused_and_harms_nothing(noise in prop::collection::vec(any::<u8>(), 0..400), cut in 0..60_usize, flip in 0..240_usize) {
        let mut decoder = Decoder::default();
        decoder.block(&noise).ok();
        decoder.block(&noise).ok();
        let mut good = bytes(PACKED[0]);
        if let Some(byte) = good.get_mut(flip / 8) {
            *byte ^= 1 << (flip % 8);
        }
        good.truncate(good.len().saturating_sub(cut % good.len()));
        Decoder::default().block(&good).ok();
    }

    #[test]
    fn frames_of_noise_end_the_connection_or_are_passed_over(noise in prop::collection::vec(any::<u8>(), 0..600)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(4096);
            let mut connection = Connection::serve(server);
            client.write_all(&noise).await.ok();
            drop(client);
            while connection.accept().await.is_some() {}
            connection.gone().cancelled().await;
        });
    }
}

/// A client that speaks as Go's does.
struct Client {
    io: DuplexStream,
    encoder: Encoder,
    opened: u32,
}

impl Client {
    fn connect() -> (Self, Connection) {
        let (io, server) = tokio::io::duplex(1 << 20);
        let client = Self {
            io,
            encoder: Encoder::default(),
            opened: 0,
        };
        (client, Connection::serve(server))
    }

    async fn open(&mut self, kind: &str) -> u32 {
        let id = self.opened * 2 + 1;
        self.opened += 1;
        let block = self.encoder.block(&headers(&[("streamtype", kind)]));
        self.io.write_all(&frame::open(id, &block)).await.unwrap();
        id
    }

    async fn send(&mut self, id: u32, data: &[u8], fin: bool) {
        self.io
            .write_all(&frame::data(id, data, fin))
            .await
            .unwrap();
    }

    /// The next frame: its first word, its flags and its payload.
    async fn next(&mut self) -> (u32, u8, Vec<u8>) {
        let first = self.io.read_u32().await.unwrap();
        let second = self.io.read_u32().await.unwrap();
        let mut payload = vec![0; usize::try_from(second & 0x00ff_ffff).unwrap()];
        self.io.read_exact(&mut payload).await.unwrap();
        (first, second.to_be_bytes()[0], payload)
    }
}

#[tokio::test]
async fn streams_carry_bytes_both_ways_and_end_each_way_alone() {
    let (mut client, mut connection) = Client::connect();
    let one = client.open("data").await;
    let two = client.open("error").await;
    let mut first = connection.accept().await.unwrap();
    let second = connection.accept().await.unwrap();
    assert_eq!(first.headers["streamtype"], "data");
    assert_eq!(second.headers["streamtype"], "error");
    for id in [one, two] {
        let (kind, _, payload) = client.next().await;
        assert_eq!(kind, 0x8003_0002);
        assert_eq!(payload[..4], id.to_be_bytes());
    }
    client.send(one, b"ping", true).await;
    let mut heard = String::new();
    first.io.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "ping");
    first.io.write_all(b"pong").await.unwrap();
    first.io.shutdown().await.unwrap();
    assert_eq!(client.next().await, (one, 0, b"pong".to_vec()));
    assert_eq!(client.next().await, (one, 1, Vec::new()));
    // The end of one stream is not that of the other, and pings are answered.
    client.io.write_all(&frame::ping(7)).await.unwrap();
    assert_eq!(
        client.next().await,
        (0x8003_0006, 0, 7_u32.to_be_bytes().to_vec())
    );
    drop(client);
    connection.gone().cancelled().await;
    assert!(connection.accept().await.is_none());
    drop(second);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_buffered_for() {
    let (io, server) = tokio::io::duplex(1024);
    let mut client = Client {
        io,
        encoder: Encoder::default(),
        opened: 0,
    };
    let mut connection = Connection::serve(server);
    let id = client.open("stdout").await;
    let mut stream = connection.accept().await.unwrap();
    assert_eq!(client.next().await.2[..4], id.to_be_bytes());
    // Everything in between is full long before this much; the writer waits.
    let megabytes = vec![7; 4 << 20];
    let writing = stream.io.write_all(&megabytes);
    let mut read = 0;
    tokio::pin!(writing);
    tokio::select! {
        biased;
        _ = &mut writing => panic!("four megabytes were taken for a client that reads nothing"),
        () = tokio::task::yield_now() => {}
    }
    let reading = async {
        while read < 4 << 20 {
            read += client.next().await.2.len();
        }
    };
    let (written, ()) = tokio::join!(writing, reading);
    written.unwrap();
}

#[tokio::test]
async fn a_stream_nobody_reads_does_not_stop_the_others_when_it_is_dropped() {
    let (mut client, mut connection) = Client::connect();
    let one = client.open("stdin").await;
    let two = client.open("data").await;
    drop(connection.accept().await.unwrap());
    let mut other = connection.accept().await.unwrap();
    for _ in 0..2 {
        client.next().await;
    }
    client.send(one, &vec![1; 200_000], false).await;
    client.send(two, b"still here", true).await;
    let mut heard = String::new();
    other.io.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "still here");
}
