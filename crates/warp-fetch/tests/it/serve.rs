//! A server for the tests' stores: reads a request whole, hands it to whoever judges it, and sends the reply, or a part
//! of it where trouble is wanted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// As it came, escaped.
    pub path: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// A parameter of the query, without its escapes.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(known, _)| *known == name)
            .map(|(_, value)| unescaped(value))
    }
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are sent; the connection closes if that is not all of it.
    pub sent: usize,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            sent: body.len(),
            body,
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Content, or the range of it that is asked for; 416 where there is no such range.
    pub fn content(request: &Request, content: &[u8]) -> Self {
        let Some(range) = request.header("range") else {
            return Self::new(200, content);
        };
        let asked = range
            .strip_prefix("bytes=")
            .and_then(|it| it.split_once('-'));
        let first = asked.and_then(|(first, _)| first.parse::<usize>().ok());
        let last = asked.and_then(|(_, last)| last.parse::<usize>().ok());
        match first.zip(last) {
            Some((first, last)) if first <= last && last < content.len() => {
                let place = format!("bytes {first}-{last}/{}", content.len());
                Self::new(206, &content[first..=last]).with("Content-Range", place)
            }
            _ => Self::new(416, ""),
        }
    }
}

/// Serves until it is dropped.
pub struct Serving {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Serving {
    pub fn start(judge: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (ended, judge) = (Arc::clone(&over), Arc::new(judge));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, judge) = (stream.unwrap(), Arc::clone(&judge));
                std::thread::spawn(move || serve(&stream, &*judge));
            }
        });
        Self {
            address,
            over,
            accepting: Some(accepting),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.address).ok();
        if let Some(accepting) = self.accepting.take() {
            accepting.join().ok();
        }
    }
}

fn serve(stream: &TcpStream, judge: &dyn Fn(&Request) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        let reply = judge(&request);
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
    let mut request = Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        let name = name.to_lowercase();
        request.headers.insert(name, value.trim().to_owned());
    }
    let length = request.header("content-length");
    let length = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    reader.take(length).read_to_end(&mut request.body).ok()?;
    Some(request)
}

pub fn unescaped(text: &str) -> String {
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
