//! A hub for tests: serves folders as the Hugging Face hub serves repositories (commits, trees in pages, redirections to
//! signed addresses, ranges, etags), counts what it sends, and misbehaves on request. The real `huggingface_hub` client
//! downloads from it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// Files of a page of the tree.
const PAGE: usize = 1000;
/// Files from this size on, and weights of any size, are kept as large ones.
const LARGE_BYTES: u64 = 1 << 20;

/// What one request for content gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    Right,
    /// Nothing more after so many bytes, with the connection kept open.
    Stall(u64),
    /// The connection closes after so many bytes.
    Cut(u64),
    /// This status, with `Retry-After` where it is not zero.
    Status(u16, u64),
    /// The byte at this place of the file is another.
    Flip(u64),
    /// The whole file whatever range was asked for.
    Whole,
}

/// Decides what a request for content gets, from its number and the file's path.
pub type Script = Box<dyn Fn(u64, &str) -> Answer + Send + Sync>;

#[derive(Debug)]
struct Entry {
    path: String,
    file: PathBuf,
    size: u64,
    large: bool,
    sha256: String,
    git: String,
}

struct Repository {
    commit: String,
    entries: Vec<Entry>,
}

struct Shared {
    address: SocketAddr,
    repositories: Mutex<BTreeMap<String, Arc<Repository>>>,
    token: Option<String>,
    script: Mutex<Script>,
    /// Requests for content so far.
    asked: AtomicU64,
    sent: AtomicU64,
    over: AtomicBool,
    requests: Mutex<Vec<String>>,
}

/// Serves until it is dropped.
pub struct Hub {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Hub {
    /// A hub with the repositories below `folder` (`org/name/files…`), for everybody or for holders of `token`.
    pub fn start(folder: &Path, token: Option<&str>) -> Self {
        Self::listen("127.0.0.1:0", folder, token)
    }

    pub fn listen(address: &str, folder: &Path, token: Option<&str>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let shared = Arc::new(Shared {
            address: listener.local_addr().unwrap(),
            repositories: Mutex::default(),
            token: token.map(str::to_owned),
            script: Mutex::new(Box::new(|_, _| Answer::Right)),
            asked: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            over: AtomicBool::new(false),
            requests: Mutex::default(),
        });
        let hub = Self {
            accepting: Some(accept(listener, Arc::clone(&shared))),
            shared,
        };
        hub.read(folder);
        hub
    }

    /// Reads the repositories again: changed content is a new commit.
    pub fn read(&self, folder: &Path) {
        for org in folders(folder) {
            for name in folders(&org) {
                let id = format!("{}/{}", last(&org), last(&name));
                let repository = Arc::new(Repository::read(&name));
                self.shared
                    .repositories
                    .lock()
                    .unwrap()
                    .insert(id, repository);
            }
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    pub fn commit(&self, name: &str) -> String {
        self.shared.repositories.lock().unwrap()[name]
            .commit
            .clone()
    }

    /// From now on, requests for content are numbered from 0 and answered by `script`.
    pub fn script(&self, script: impl Fn(u64, &str) -> Answer + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
        self.shared.asked.store(0, Ordering::SeqCst);
    }

    /// Bytes of content handed to connections so far.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }

    pub fn forget(&self) {
        self.shared.sent.store(0, Ordering::SeqCst);
        self.shared.requests.lock().unwrap().clear();
    }

    /// Method and path of every request since, with `+token` where one was shown.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // The thread waits for a connection: this is the last one.
        let _ = TcpStream::connect(self.shared.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

fn last(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn hex(digest: &Digest) -> String {
    digest
        .as_ref()
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
}

impl Repository {
    fn read(folder: &Path) -> Self {
        let mut entries = Vec::new();
        Self::walk(folder, "", &mut entries);
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        let mut all = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for entry in &entries {
            all.update(format!("{} {}\n", entry.path, entry.sha256).as_bytes());
        }
        Self {
            commit: hex(&all.finish()),
            entries,
        }
    }

    fn walk(folder: &Path, prefix: &str, entries: &mut Vec<Entry>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let path = format!("{prefix}{}", last(&file));
            if file.is_dir() {
                Self::walk(&file, &format!("{path}/"), entries);
                continue;
            }
            let size = file.metadata().unwrap().len();
            let large = size >= LARGE_BYTES || path.ends_with(".safetensors");
            let (sha256, git) = digests(&file, size, large);
            entries.push(Entry {
                path,
                file,
                size,
                large,
                sha256,
                git,
            });
        }
    }
}

fn digests(file: &Path, size: u64, large: bool) -> (String, String) {
    let mut sha = Context::new(&SHA256);
    let mut git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    git.update(format!("blob {size}\0").as_bytes());
    let mut reader = File::open(file).unwrap();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = reader.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        sha.update(&buffer[..count]);
        if !large {
            git.update(&buffer[..count]);
        }
    }
    let sha = hex(&sha.finish());
    if large {
        // Git has a pointer in the place of a large file.
        let pointer =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n");
        git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        git.update(format!("blob {}\0{pointer}", pointer.len()).as_bytes());
    }
    (sha, hex(&git.finish()))
}

fn accept(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if shared.over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                // A client that goes away is its own affair.
                let _ = serve(stream, &shared);
            });
        }
    })
}

#[derive(Debug, Default)]
struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
}

fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method,
        path: unescaped(path),
        query: query.to_owned(),
        headers: BTreeMap::new(),
    };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            let name = name.trim().to_lowercase();
            request.headers.insert(name, value.trim().to_owned());
        }
    }
    let length = request.headers.get("content-length");
    let length = length
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0);
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(request))
}

fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = std::str::from_utf8(after.get(..2).unwrap_or_default());
        let code = code.ok().and_then(|text| u8::from_str_radix(text, 16).ok());
        if let Some(code) = code.filter(|_| *first == b'%') {
            bytes.push(code);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        if shared.over.load(Ordering::SeqCst) || !answer(&request, &mut out, shared)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Answers one request; false when the connection is to be closed.
fn answer(request: &Request, out: &mut TcpStream, shared: &Shared) -> std::io::Result<bool> {
    let shown = request
        .headers
        .get("authorization")
        .map_or("", |_| " +token");
    let line = format!("{} {}{shown}", request.method, request.path);
    shared.requests.lock().unwrap().push(line);
    if let Some(rest) = request.path.strip_prefix("/cdn/") {
        return content_by_digest(rest, request, out, shared);
    }
    if let Some(token) = &shared.token
        && request.headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        let why = "X-Error-Code: GatedRepo\r\nX-Error-Message: Access is restricted\r\n";
        return plain(request, out, "401 Unauthorized", why, "{\"error\":\"no\"}");
    }
    let words: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    match words.as_slice() {
        [
            "api",
            "models",
            org,
            name,
            kind @ ("revision" | "tree"),
            revision,
            ..,
        ] => described(
            &format!("{org}/{name}"),
            kind,
            revision,
            request,
            out,
            shared,
        ),
        ["api", "models", org, name] => described(
            &format!("{org}/{name}"),
            "revision",
            "main",
            request,
            out,
            shared,
        ),
        [org, name, "resolve", revision, path @ ..] if !path.is_empty() => resolved(
            &format!("{org}/{name}"),
            revision,
            &path.join("/"),
            request,
            out,
            shared,
        ),
        _ => missing(request, out, "EntryNotFound"),
    }
}

fn missing(request: &Request, out: &mut TcpStream, code: &str) -> std::io::Result<bool> {
    let why = format!("X-Error-Code: {code}\r\n");
    plain(
        request,
        out,
        "404 Not Found",
        &why,
        "{\"error\":\"not found\"}",
    )
}

fn plain(
    request: &Request,
    out: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<bool> {
    let length = body.len();
    let body = if request.method == "HEAD" { "" } else { body };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    out.write_all(text.as_bytes())?;
    Ok(true)
}

fn find(shared: &Shared, id: &str, revision: &str) -> Option<Arc<Repository>> {
    let repositories = shared.repositories.lock().unwrap();
    let found = repositories.get(id)?;
    (revision == "main" || revision == found.commit).then(|| Arc::clone(found))
}

fn described(
    id: &str,
    kind: &str,
    revision: &str,
    request: &Request,
    out: &mut TcpStream,
    shared: &Shared,
) -> std::io::Result<bool> {
    let Some(repository) = find(shared, id, revision) else {
        return missing(request, out, "RevisionNotFound");
    };
    if kind == "revision" {
        let siblings = repository
            .entries
            .iter()
            .map(|entry| serde_json::json!({"rfilename": entry.path}));
        let body = serde_json::json!({
            "_id": "x", "id": id, "modelId": id, "sha": repository.commit, "private": false,
            "siblings": siblings.collect::<Vec<_>>(), "tags": [], "downloads": 0, "likes": 0,
        });
        return plain(request, out, "200 OK", "", &body.to_string());
    }
    let cursor = request
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("cursor="));
    let start: usize = cursor.and_then(|text| text.parse().ok()).unwrap_or(0);
    let page = repository
        .entries
        .iter()
        .skip(start)
        .take(PAGE)
        .map(|entry| {
            let mut value = serde_json::json!({
                "type": "file", "path": entry.path, "size": entry.size, "oid": entry.git,
            });
            if entry.large {
                value["lfs"] = serde_json::json!({
                    "oid": entry.sha256, "size": entry.size, "pointerSize": 130,
                });
            }
            value
        });
    let body = serde_json::json!(page.collect::<Vec<_>>()).to_string();
    let more = start + PAGE < repository.entries.len();
    let link = format!(
        "Link: <http://{}/api/models/{id}/tree/{revision}?recursive=true&cursor={}>; rel=\"next\"\r\n",
        shared.address,
        start + PAGE
    );
    plain(request, out, "200 OK", if more { &link } else { "" }, &body)
}

fn resolved(
    id: &str,
    revision: &str,
    path: &str,
    request: &Request,
    out: &mut TcpStream,
    shared: &Shared,
) -> std::io::Result<bool> {
    let Some(repository) = find(shared, id, revision) else {
        return missing(request, out, "RevisionNotFound");
    };
    let Some(entry) = repository.entries.iter().find(|entry| entry.path == path) else {
        return missing(request, out, "EntryNotFound");
    };
    let commit = format!("X-Repo-Commit: {}\r\n", repository.commit);
    if !entry.large {
        let headers = format!("{commit}ETag: \"{}\"\r\n", entry.git);
        return content(entry, &headers, request, out, shared);
    }
    // Content lies with somebody else: the same server by its other name.
    let port = shared.address.port();
    let host = request.headers.get("host").map_or("", String::as_str);
    let elsewhere = if host.starts_with("localhost") {
        "127.0.0.1"
    } else {
        "localhost"
    };
    let (size, sha) = (entry.size, &entry.sha256);
    let headers = format!(
        "{commit}X-Linked-Size: {size}\r\nX-Linked-Etag: \"{sha}\"\r\nETag: \"{sha}\"\r\nLocation: http://{elsewhere}:{port}/cdn/{sha}?Signature=secret\r\n"
    );
    plain(request, out, "302 Found", &headers, "")
}

fn content_by_digest(
    sha256: &str,
    request: &Request,
    out: &mut TcpStream,
    shared: &Shared,
) -> std::io::Result<bool> {
    let repositories = shared.repositories.lock().unwrap().clone();
    let entry = repositories
        .values()
        .flat_map(|repository| &repository.entries)
        .find(|entry| entry.sha256 == sha256);
    match entry {
        Some(entry) => {
            let headers = format!("ETag: \"{sha256}\"\r\n");
            content(entry, &headers, request, out, shared)
        }
        None => missing(request, out, "EntryNotFound"),
    }
}

/// First and last byte that are asked for.
fn range(request: &Request, size: u64) -> Option<(u64, u64)> {
    let text = request.headers.get("range")?.strip_prefix("bytes=")?;
    let (first, last) = text.split_once('-')?;
    let first = first.parse().ok()?;
    let last = last.parse().unwrap_or(u64::MAX).min(size.checked_sub(1)?);
    (first <= last).then_some((first, last))
}

fn content(
    entry: &Entry,
    headers: &str,
    request: &Request,
    out: &mut TcpStream,
    shared: &Shared,
) -> std::io::Result<bool> {
    if request.method == "HEAD" {
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{headers}\r\n",
            entry.size
        );
        out.write_all(text.as_bytes())?;
        return Ok(true);
    }
    let number = shared.asked.fetch_add(1, Ordering::SeqCst);
    let verdict = (shared.script.lock().unwrap())(number, &entry.path);
    if let Answer::Status(code, after) = verdict {
        let wait = if after > 0 {
            format!("Retry-After: {after}\r\n")
        } else {
            String::new()
        };
        return plain(request, out, &format!("{code} Trouble"), &wait, "{}");
    }
    let ranged = range(request, entry.size).filter(|_| verdict != Answer::Whole);
    let (first, last) = ranged.unwrap_or((0, entry.size.saturating_sub(1)));
    let length = if entry.size == 0 { 0 } else { last - first + 1 };
    let (status, extra) = match ranged {
        Some(_) => (
            "206 Partial Content",
            format!("Content-Range: bytes {first}-{last}/{}\r\n", entry.size),
        ),
        None => ("200 OK", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nAccept-Ranges: bytes\r\n{extra}{headers}\r\n"
    );
    out.write_all(head.as_bytes())?;
    send(entry, (first, length), verdict, out, shared)
}

fn send(
    entry: &Entry,
    (first, length): (u64, u64),
    verdict: Answer,
    out: &mut TcpStream,
    shared: &Shared,
) -> std::io::Result<bool> {
    let limit = match verdict {
        Answer::Stall(bytes) | Answer::Cut(bytes) => bytes.min(length),
        _ => length,
    };
    let file = File::open(&entry.file)?;
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    while done < limit {
        let count = usize::try_from(limit - done).unwrap().min(buffer.len());
        let at = first + done;
        file.read_exact_at(&mut buffer[..count], at)?;
        if let Answer::Flip(place) = verdict
            && (at..at + count as u64).contains(&place)
        {
            buffer[usize::try_from(place - at).unwrap()] ^= 1;
        }
        out.write_all(&buffer[..count])?;
        done += count as u64;
        shared.sent.fetch_add(count as u64, Ordering::SeqCst);
    }
    if matches!(verdict, Answer::Stall(_)) {
        // Until the client has had enough.
        let mut one = [0];
        let _ = out.read(&mut one);
        return Ok(false);
    }
    Ok(limit == length)
}
