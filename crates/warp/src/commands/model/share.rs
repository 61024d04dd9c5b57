//! `warp model share`: the models of a cache over HTTP, as the hub offers them, so that machines nearby take the bytes from
//! here (`warp fetch --peer`) and clients of the hub may use it as one (`HF_ENDPOINT`). It only reads.

use std::collections::BTreeMap;
use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::cluster;
use crate::commands::fetch::cache;
use crate::output;

/// The longest question.
const HEAD_BYTES: usize = 16 << 10;
/// How long a question may take.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How long a piece of an answer may take.
const PIECE_LIMIT: Duration = Duration::from_mins(1);
const PIECE_BYTES: usize = 256 << 10;
/// Connections at once; others wait.
const AT_ONCE: usize = 64;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The cache whose models are shared [default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Where to answer; whoever reaches it may read every model of the cache
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8094")]
    listen: String,
    /// Whoever does not begin with this word is not answered
    #[arg(long, value_name = "ID", hide = true)]
    id: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = cache(args.from.as_ref())?;
    let models = models(&root).with_context(|| format!("failed to read {}", root.display()))?;
    cluster::block_on(async {
        // An address with colons in it, as pods may have, goes into brackets.
        let listen = match args.listen.rsplit_once(':') {
            Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
                format!("[{host}]:{port}")
            }
            _ => args.listen.clone(),
        };
        let listener = TcpListener::bind(&listen)
            .await
            .with_context(|| format!("failed to listen on {}", args.listen))?;
        let address = listener.local_addr()?;
        output::note(&format!(
            "{} models of {} are shared until this ends: warp fetch --peer http://{address} ORG/NAME",
            models.len(),
            root.display()
        ));
        output::line(&format!("http://{address}"));
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let root: Arc<Path> = root.into();
        let below: Arc<str> = args
            .id
            .as_deref()
            .map(|id| format!("/{id}"))
            .unwrap_or_default()
            .into();
        loop {
            let (stream, _) = listener.accept().await?;
            let turn = Arc::clone(&turns).acquire_owned().await?;
            let (root, below) = (Arc::clone(&root), Arc::clone(&below));
            tokio::spawn(async move {
                // Whoever hangs up is no trouble of this end.
                let _ = serve(stream, &root, &below).await;
                drop(turn);
            });
        }
    })
}

/// The folders of models of a cache.
fn models(root: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(Some(name).filter(|name| name.starts_with("models--")));
    }
    Ok(names)
}

/// A question: what for, and which bytes.
struct Question {
    head_only: bool,
    path: String,
    range: Option<(u64, Option<u64>)>,
}

enum Answer {
    Json(Value),
    File {
        path: PathBuf,
        commit: String,
        blob: String,
    },
    None,
}

async fn serve(mut stream: TcpStream, root: &Path, below: &str) -> std::io::Result<()> {
    let asked = tokio::time::timeout(HEAD_LIMIT, read(&mut stream)).await;
    let Ok(Ok(Some(question))) = asked else {
        return Ok(());
    };
    let asked = question.path.strip_prefix(below);
    match asked.map_or(Answer::None, |path| find(root, path)) {
        Answer::Json(value) => {
            let body = value.to_string();
            let head = head(
                "200 OK",
                body.len() as u64,
                "Content-Type: application/json\r\n",
            );
            stream.write_all(head.as_bytes()).await?;
            if !question.head_only {
                stream.write_all(body.as_bytes()).await?;
            }
        }
        Answer::File { path, commit, blob } => {
            send(&mut stream, &question, &path, &commit, &blob).await?;
        }
        Answer::None => {
            let missing = "X-Error-Code: EntryNotFound\r\n";
            stream
                .write_all(head("404 Not Found", 0, missing).as_bytes())
                .await?;
        }
    }
    stream.shutdown().await
}

fn head(status: &str, length: u64, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n")
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Option<Question>> {
    let mut text = Vec::new();
    while !text.windows(4).any(|four| four == b"\r\n\r\n") {
        if text.len() > HEAD_BYTES || stream.read_buf(&mut text).await? == 0 {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let range = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let bytes = value.trim().strip_prefix("bytes=")?;
        let (first, last) = bytes.split_once('-')?;
        let last = last.parse().ok();
        let range = (first.parse().ok()?, last);
        name.eq_ignore_ascii_case("range").then_some(range)
    });
    let known = matches!(method, "GET" | "HEAD");
    Ok(known.then(|| Question {
        head_only: method == "HEAD",
        path: path.split('?').next().unwrap_or_default().to_owned(),
        range,
    }))
}

/// What the hub's own addresses lead to in the cache. Paths are compared with those of the model, never followed.
fn find(root: &Path, path: &str) -> Answer {
    let Some(parts) = path
        .trim_start_matches('/')
        .split('/')
        .map(unescaped)
        .collect::<Option<Vec<String>>>()
    else {
        return Answer::None;
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (org, name, revision, wanted) = match parts.as_slice() {
        ["api", "models", org, name, "revision" | "tree", revision] => {
            (*org, *name, *revision, None)
        }
        [org, name, "resolve", revision, rest @ ..] => {
            (*org, *name, *revision, Some(rest.join("/")))
        }
        _ => return Answer::None,
    };
    let plain = |word: &str| !word.is_empty() && !word.contains(['/', '\\']) && word != "..";
    if !plain(org) || !plain(name) {
        return Answer::None;
    }
    let repository = root.join(format!("models--{org}--{name}"));
    let Some(commit) = commit(&repository, revision) else {
        return Answer::None;
    };
    let files = files(&repository.join("snapshots").join(&commit));
    if let Some(wanted) = wanted {
        let Some(blob) = files.get(&wanted).cloned() else {
            return Answer::None;
        };
        let path = repository.join("blobs").join(&blob);
        return Answer::File { path, commit, blob };
    }
    let sized = files.iter().filter_map(|(path, blob)| {
        let about = std::fs::metadata(repository.join("blobs").join(blob)).ok()?;
        Some((path, blob, about.len()))
    });
    if parts[4] == "revision" {
        let siblings: Vec<Value> = sized.map(|(path, ..)| json!({"rfilename": path})).collect();
        return Answer::Json(
            json!({"id": format!("{org}/{name}"), "sha": commit, "siblings": siblings}),
        );
    }
    let tree = sized.map(|(path, blob, size)| {
        let mut entry = json!({"type": "file", "path": path, "size": size, "oid": blob});
        // Large files are named by their SHA-256, small ones by git's id.
        if blob.len() == 64 {
            entry["lfs"] = json!({"oid": blob, "size": size});
        }
        entry
    });
    Answer::Json(Value::Array(tree.collect()))
}

/// The commit a revision stands for here.
fn commit(repository: &Path, revision: &str) -> Option<String> {
    let is_commit =
        |text: &str| text.len() == 40 && text.chars().all(|letter| letter.is_ascii_hexdigit());
    let there = |commit: &str| repository.join("snapshots").join(commit).is_dir();
    if is_commit(revision) {
        return there(revision).then(|| revision.to_owned());
    }
    if revision
        .split('/')
        .any(|part| matches!(part, "" | "." | ".."))
    {
        return None;
    }
    let named = std::fs::read_to_string(repository.join("refs").join(revision)).ok()?;
    let named = named.trim();
    (is_commit(named) && there(named)).then(|| named.to_owned())
}

/// The files of a snapshot, each with the name of its blob.
fn files(snapshot: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(snapshot.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                folders.push((entry.path(), format!("{path}/")));
                continue;
            }
            let Ok(target) = std::fs::read_link(entry.path()) else {
                continue;
            };
            let blob = target
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let is_blob = |name: &String| {
                matches!(name.len(), 40 | 64) && name.chars().all(|one| one.is_ascii_hexdigit())
            };
            if let Some(blob) = blob.filter(is_blob) {
                found.insert(path, blob);
            }
        }
    }
    found
}

/// A part of an address with its escapes read.
fn unescaped(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

async fn send(
    stream: &mut TcpStream,
    question: &Question,
    path: &Path,
    commit: &str,
    blob: &str,
) -> std::io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let size = file.metadata().await?.len();
    let tags = format!("ETag: \"{blob}\"\r\nX-Repo-Commit: {commit}\r\nAccept-Ranges: bytes\r\n");
    let (first, end, status, more) = match question.range {
        Some((first, _)) if first >= size => {
            let whole = format!("{tags}Content-Range: bytes */{size}\r\n");
            let text = head("416 Range Not Satisfiable", 0, &whole);
            return stream.write_all(text.as_bytes()).await;
        }
        Some((first, last)) => {
            let end = last.map_or(size, |last: u64| last.saturating_add(1).min(size));
            let last = end.saturating_sub(1);
            let part = format!("{tags}Content-Range: bytes {first}-{last}/{size}\r\n");
            (first, end.max(first), "206 Partial Content", part)
        }
        None => (0, size, "200 OK", tags),
    };
    let text = head(status, end - first, &more);
    stream.write_all(text.as_bytes()).await?;
    if question.head_only {
        return Ok(());
    }
    file.seek(SeekFrom::Start(first)).await?;
    let mut rest = file.take(end - first);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = rest.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        // A reader that takes nothing gives its place to others.
        let sent = tokio::time::timeout(PIECE_LIMIT, stream.write_all(&piece[..read])).await;
        sent.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    }
}
