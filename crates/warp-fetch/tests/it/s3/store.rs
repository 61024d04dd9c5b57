//! A store for tests that speaks as much of S3 as a reader needs, and is strict: a request whose signature, date or
//! hash is not exactly right is refused, as is a header `x-amz-…` that was not signed. It works the signature out by
//! itself, from the request as it came.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};

pub const KEY_ID: &str = "AKTEST";
pub const SECRET: &str = "s3cret/with+signs";
pub const REGION: &str = "eu-west-1";
const NAME: &str = "models";
/// Objects of a page.
const PAGE: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    /// The first large answer ends in its middle.
    CutOnce,
    /// A byte of every large answer is another.
    Flip,
    /// Large objects have another tag from the second range on.
    ChangeAfterFirstRange,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    session: Option<String>,
    checksums: bool,
    trouble: Trouble,
    ranges: u64,
    pages: u64,
    refused: u64,
}

struct Shared {
    address: SocketAddr,
    state: Mutex<State>,
    over: AtomicBool,
}

/// Serves until it is dropped.
pub struct Bucket {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent before the connection closes.
    sent: usize,
}

impl Reply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            sent: body.len(),
            body,
        }
    }
}

impl Bucket {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            address: listener.local_addr().unwrap(),
            state: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.over.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, serving) = (stream.unwrap(), Arc::clone(&serving));
                std::thread::spawn(move || serve(&stream, &serving));
            }
        });
        Self {
            shared,
            accepting: Some(accepting),
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
    }

    pub fn put(&self, key: &str, content: Vec<u8>) {
        self.change(|state| {
            state.objects.insert(key.to_owned(), content);
        });
    }

    pub fn demand_session(&self, token: &str) {
        self.change(|state| state.session = Some(token.to_owned()));
    }

    pub fn keep_checksums(&self) {
        self.change(|state| state.checksums = true);
    }

    pub fn trouble(&self, trouble: Trouble) {
        self.change(|state| {
            state.trouble = trouble;
            state.ranges = 0;
        });
    }

    pub fn pages(&self) -> u64 {
        self.shared.state.lock().unwrap().pages
    }

    pub fn refused(&self) -> u64 {
        self.shared.state.lock().unwrap().refused
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.shared.address).ok();
        if let Some(accepting) = self.accepting.take() {
            accepting.join().ok();
        }
    }
}

/// Answers one request after the other.
fn serve(stream: &TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        let reply = reply(&request, shared);
        let mut head = format!(
            "HTTP/1.1 {} x\r\nContent-Length: {}\r\n",
            reply.status,
            reply.body.len()
        );
        for (name, value) in &reply.headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        head += "\r\n";
        let whole = request.method != "HEAD";
        let body = if whole {
            &reply.body[..reply.sent]
        } else {
            &[]
        };
        let sent = writer
            .write_all(head.as_bytes())
            .and_then(|()| writer.write_all(body));
        if sent.is_err() || reply.sent < reply.body.len() {
            stream.shutdown(std::net::Shutdown::Both).ok();
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Some(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
    })
}

fn reply(request: &Request, shared: &Shared) -> Reply {
    let mut state = shared.state.lock().unwrap();
    if let Err((status, why)) = signed(request, state.session.as_deref()) {
        state.refused += 1;
        return Reply::new(status, format!("<Error><Message>{why}</Message></Error>"));
    }
    let Some(rest) = request.path.strip_prefix(&format!("/{NAME}")) else {
        return Reply::new(404, "<Error><Code>NoSuchBucket</Code></Error>");
    };
    if rest.is_empty() {
        return list(request, &mut state);
    }
    object(
        request,
        &unescaped(rest.trim_start_matches('/')),
        &mut state,
    )
}

fn object(request: &Request, key: &str, state: &mut State) -> Reply {
    let Some(content) = state.objects.get(key).cloned() else {
        return Reply::new(404, "<Error><Code>NoSuchKey</Code></Error>");
    };
    let range = request.headers.get("range").map(|range| {
        let (first, last) = range
            .strip_prefix("bytes=")
            .and_then(|range| range.split_once('-'))
            .unwrap();
        (first.parse().unwrap(), last.parse::<usize>().unwrap())
    });
    let size = content.len();
    let mut reply = match range {
        Some((first, last)) => {
            let mut reply = Reply::new(206, &content[first..=last]);
            let place = format!("bytes {first}-{last}/{size}");
            reply.headers.push(("Content-Range".to_owned(), place));
            reply
        }
        None => Reply::new(200, content.clone()),
    };
    let mut tag = tag(&content);
    if range.is_some() {
        state.ranges += 1;
        match state.trouble {
            Trouble::CutOnce if state.ranges == 1 => reply.sent = reply.body.len() / 2,
            Trouble::Flip => reply.body[0] ^= 0xff,
            Trouble::ChangeAfterFirstRange if state.ranges > 1 => tag.push('x'),
            _ => {}
        }
    }
    reply.headers.push(("ETag".to_owned(), tag));
    let asked = request.headers.get("x-amz-checksum-mode");
    if state.checksums && asked.is_some_and(|mode| mode == "ENABLED") {
        let sum = STANDARD.encode(digest::digest(&digest::SHA256, &content).as_ref());
        let headers = [
            ("x-amz-checksum-sha256", sum.as_str()),
            ("x-amz-checksum-type", "FULL_OBJECT"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        reply.headers.extend(headers);
    }
    reply
}

fn list(request: &Request, state: &mut State) -> Reply {
    let parameters: BTreeMap<&str, String> = request
        .query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name, unescaped(value)))
        .collect();
    let given = |name: &str| parameters.get(name).map_or("", String::as_str);
    if given("list-type") != "2" || given("encoding-type") != "url" {
        return Reply::new(501, "");
    }
    state.pages += 1;
    let after = given("continuation-token").strip_prefix("after/ ");
    let prefix = given("prefix");
    let all: Vec<&String> = state
        .objects
        .keys()
        .filter(|key| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after))
        .collect();
    let mut text = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    for key in all.iter().take(PAGE) {
        let content = &state.objects[*key];
        let kept = if state.checksums {
            "<ChecksumAlgorithm>SHA256</ChecksumAlgorithm>"
        } else {
            ""
        };
        write!(
            text,
            "<Contents><Key>{}</Key><ETag>{}</ETag>{kept}<Size>{}</Size></Contents>",
            escaped(key, "/"),
            tag(content).replace('"', "&quot;"),
            content.len()
        )
        .unwrap();
    }
    let more = all.len() > PAGE;
    write!(text, "<IsTruncated>{more}</IsTruncated>").unwrap();
    if more {
        let token = format!("after/ {}", all[PAGE - 1]);
        write!(
            text,
            "<NextContinuationToken>{token}</NextContinuationToken>"
        )
        .unwrap();
    }
    Reply::new(200, text + "</ListBucketResult>")
}

/// Whether a request is signed as it must be; or the status it gets and why.
fn signed(request: &Request, session: Option<&str>) -> Result<(), (u16, &'static str)> {
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    let given = header("authorization").ok_or((403, "AccessDenied"))?;
    let rest = given
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or((400, "InvalidArgument"))?;
    let parts: BTreeMap<&str, &str> = rest
        .split(", ")
        .filter_map(|part| part.split_once('='))
        .collect();
    let part = |name: &str| parts.get(name).copied().ok_or((400, "InvalidArgument"));
    let (credential, names, signature) = (
        part("Credential")?,
        part("SignedHeaders")?,
        part("Signature")?,
    );
    let date = header("x-amz-date").ok_or((403, "AccessDenied"))?;
    let day = date.get(..8).ok_or((403, "AccessDenied"))?;
    let (key_id, scope) = credential.split_once('/').ok_or((400, "InvalidArgument"))?;
    if scope != format!("{day}/{REGION}/s3/aws4_request") {
        return Err((400, "AuthorizationHeaderMalformed"));
    }
    let empty = hex(digest::digest(&digest::SHA256, b"").as_ref());
    if key_id != KEY_ID || header("x-amz-content-sha256") != Some(&*empty) {
        return Err((403, "InvalidAccessKeyId or XAmzContentSHA256Mismatch"));
    }
    if header("x-amz-security-token") != session {
        return Err((403, "InvalidToken"));
    }
    let signed: Vec<&str> = names.split(';').collect();
    let must = request
        .headers
        .keys()
        .filter(|name| name.starts_with("x-amz-") || *name == "host");
    if !must.into_iter().all(|name| signed.contains(&name.as_str())) || !signed.is_sorted() {
        return Err((403, "headers not signed"));
    }
    let now = jiff::Timestamp::now().strftime("%Y%m%d").to_string();
    if day
        .parse::<u64>()
        .unwrap_or(0)
        .abs_diff(now.parse().unwrap())
        > 1
    {
        return Err((403, "RequestTimeTooSkewed"));
    }
    let mut lines = String::new();
    for name in &signed {
        let value = header(name).ok_or((403, "a signed header is missing"))?;
        writeln!(lines, "{name}:{value}").unwrap();
    }
    let mut query: Vec<&str> = request
        .query
        .split('&')
        .filter(|one| !one.is_empty())
        .collect();
    query.sort_unstable();
    // The store escapes the name by its own rules and does not take the sender's word for it.
    let path = escaped(&unescaped(&request.path), "/");
    let canonical = format!(
        "{}\n{path}\n{}\n{lines}\n{names}\n{empty}",
        request.method,
        query.join("&")
    );
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}");
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in scope.split('/') {
        key = keyed(&key, part);
    }
    if hex(&keyed(&key, &to_sign)) == signature {
        Ok(())
    } else {
        Err((403, "SignatureDoesNotMatch"))
    }
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn tag(content: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, content);
    format!("\"{}\"", hex(&hash.as_ref()[..16]))
}

fn escaped(text: &str, kept: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let letter = char::from(byte);
        if letter.is_ascii_alphanumeric() || "-._~".contains(letter) || kept.contains(letter) {
            out.push(letter);
        } else {
            write!(out, "%{byte:02X}").unwrap();
        }
        out
    })
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            let digits = std::str::from_utf8(&digits).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}
