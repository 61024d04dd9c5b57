//! A registry for tests that judges: it refuses what the distribution API refuses (a manifest whose form is not
//! accepted, a range that is none, a name it does not know, content whose digest is another), gives out blobs by
//! redirecting to a place that must be shown nothing, and tokens that are good for one repository and some requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::serve::{Reply, Request, Serving, unescaped};

pub const REPOSITORY: &str = "org/tiny";
pub const USER: &str = "reader";
pub const PASSWORD: &str = "p4ss:word";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// How readers are let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    #[default]
    Open,
    Basic,
    /// A token for everybody.
    AnonymousToken,
    /// A token for who has the password.
    Token,
}

/// What one request for a blob gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    #[default]
    Right,
    Cut(usize),
    Flip(usize),
    Status(u16),
}

type Script = Box<dyn Fn(u64, usize) -> Answer + Send + Sync>;

struct State {
    door: Door,
    manifests: BTreeMap<String, (String, Vec<u8>)>,
    blobs: BTreeMap<String, Vec<u8>>,
    script: Script,
    /// Requests for the content of blobs, and bytes sent of them.
    asked: u64,
    sent: u64,
    /// Requests a token is good for.
    uses: u64,
    tokens: BTreeMap<String, u64>,
    given: u64,
    lines: Vec<String>,
}

pub struct Registry {
    serving: Serving,
    state: Arc<Mutex<State>>,
}

pub fn sha256(content: &[u8]) -> String {
    let bytes = digest(&SHA256, content);
    bytes
        .as_ref()
        .iter()
        .fold("sha256:".to_owned(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
}

impl Registry {
    pub fn start(door: Door) -> Self {
        let state = Arc::new(Mutex::new(State {
            door,
            manifests: BTreeMap::new(),
            blobs: BTreeMap::new(),
            script: Box::new(|_, _| Answer::Right),
            asked: 0,
            sent: 0,
            uses: u64::MAX,
            tokens: BTreeMap::new(),
            given: 0,
            lines: Vec::new(),
        }));
        let judged = Arc::clone(&state);
        let serving = Serving::start(move |request| judge(request, &mut judged.lock().unwrap()));
        Self { serving, state }
    }

    /// `127.0.0.1:port`.
    pub fn name(&self) -> String {
        self.serving.address().to_string()
    }

    pub fn source(&self, reference: &str) -> String {
        format!("oci://{}/{REPOSITORY}{reference}", self.name())
    }

    /// Puts a blob there; returns what a manifest says of it.
    pub fn blob(&self, kind: &str, content: Vec<u8>, notes: &Value) -> Value {
        let digest = sha256(&content);
        let layer = json!({"mediaType": kind, "digest": digest, "size": content.len(), "annotations": notes});
        self.state.lock().unwrap().blobs.insert(digest, content);
        layer
    }

    /// A file as ORAS puts it there.
    pub fn file(&self, path: &str, content: Vec<u8>) -> Value {
        let kind = "application/vnd.oci.image.layer.v1.tar";
        self.blob(
            kind,
            content,
            &json!({"org.opencontainers.image.title": path}),
        )
    }

    /// Puts a manifest there under its digest and a tag; returns the digest.
    pub fn manifest(&self, tag: &str, layers: &[Value]) -> String {
        let config = json!({"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/vnd.example.model",
            "config": config, "layers": layers,
        });
        self.document(tag, MANIFEST, &manifest)
    }

    pub fn index(&self, tag: &str, manifests: &[&str]) -> String {
        let kind = "application/vnd.oci.image.index.v1+json";
        let entries: Vec<Value> = manifests
            .iter()
            .map(|digest| json!({"mediaType": MANIFEST, "digest": digest, "size": 1}))
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": entries});
        self.document(tag, kind, &index)
    }

    fn document(&self, tag: &str, kind: &str, content: &Value) -> String {
        let bytes = content.to_string().into_bytes();
        let digest = sha256(&bytes);
        let mut state = self.state.lock().unwrap();
        for name in [tag, &digest] {
            let entry = (kind.to_owned(), bytes.clone());
            state.manifests.insert(name.to_owned(), entry);
        }
        digest
    }

    /// From now on requests for content are numbered from 0 and answered by what `script` says of number and length.
    pub fn script(&self, script: impl Fn(u64, usize) -> Answer + Send + Sync + 'static) {
        let mut state = self.state.lock().unwrap();
        state.script = Box::new(script);
        state.asked = 0;
    }

    /// A byte of a manifest is another, whatever it is asked for by.
    pub fn damage(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        let (_, bytes) = state.manifests.get_mut(name).unwrap();
        let last = bytes.len() - 2;
        bytes[last] = b' ';
    }

    pub fn uses_of_a_token(&self, uses: u64) {
        self.state.lock().unwrap().uses = uses;
    }

    pub fn tokens_given(&self) -> u64 {
        self.state.lock().unwrap().given
    }

    pub fn sent(&self) -> u64 {
        self.state.lock().unwrap().sent
    }

    pub fn lines(&self) -> Vec<String> {
        self.state.lock().unwrap().lines.clone()
    }
}

fn error(status: u16, code: &str) -> Reply {
    Reply::new(status, json!({"errors": [{"code": code}]}).to_string())
}

fn basic(request: &Request) -> bool {
    let right = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    request.header("authorization") == Some(&*right)
}

fn judge(request: &Request, state: &mut State) -> Reply {
    let shown = request.header("authorization").map_or("", |_| " +shown");
    let line = format!("{} {}{shown}", request.method, request.path);
    state.lines.push(line);
    if request.path == "/token" {
        return token(request, state);
    }
    if let Some(digest) = request.path.strip_prefix("/store/") {
        if request.header("authorization").is_some() {
            return error(400, "ONLY_ONE_AUTH_MECHANISM_ALLOWED");
        }
        return content(request, &unescaped(digest), state);
    }
    if let Some(refusal) = refused(request, state) {
        return refusal;
    }
    let below = format!("/v2/{REPOSITORY}/");
    let Some(rest) = request.path.strip_prefix(&below) else {
        return error(404, "NAME_UNKNOWN");
    };
    match rest.split_once('/') {
        Some(("manifests", name)) => manifest(request, &unescaped(name), state),
        Some(("blobs", digest)) => {
            let digest = unescaped(digest);
            if !state.blobs.contains_key(&digest) {
                return error(404, "BLOB_UNKNOWN");
            }
            let host = request
                .header("host")
                .unwrap()
                .replace("127.0.0.1", "localhost");
            Reply::new(307, "").with(
                "Location",
                format!("http://{host}/store/{digest}?sig=s3cret"),
            )
        }
        _ => error(404, "UNSUPPORTED"),
    }
}

/// The refusal of who may not come in.
fn refused(request: &Request, state: &mut State) -> Option<Reply> {
    let host = request.header("host").unwrap();
    let bearer = format!(
        "Bearer realm=\"http://{host}/token?account=x\",service=\"registry, of tests\",scope=\"repository:{REPOSITORY}:pull\""
    );
    let asked = match state.door {
        Door::Open => return None,
        Door::Basic if basic(request) => return None,
        Door::Basic => "Basic realm=\"tests\"".to_owned(),
        Door::AnonymousToken | Door::Token => {
            let shown = request.header("authorization").unwrap_or_default();
            let token = shown.strip_prefix("Bearer ").unwrap_or_default();
            match state.tokens.get_mut(token) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    return None;
                }
                _ => bearer,
            }
        }
    };
    Some(error(401, "UNAUTHORIZED").with("WWW-Authenticate", asked))
}

fn token(request: &Request, state: &mut State) -> Reply {
    let right = request.method == "GET"
        && request.parameter("account").as_deref() == Some("x")
        && request.parameter("service").as_deref() == Some("registry, of tests")
        && request.parameter("scope") == Some(format!("repository:{REPOSITORY}:pull"));
    if !right {
        return error(400, "UNSUPPORTED");
    }
    if state.door == Door::Token && !basic(request) {
        return error(401, "UNAUTHORIZED");
    }
    state.given += 1;
    let name = format!("t0ken-{}", state.given);
    state.tokens.insert(name.clone(), state.uses);
    Reply::new(200, json!({"token": name, "expires_in": 60}).to_string())
}

fn manifest(request: &Request, name: &str, state: &State) -> Reply {
    let Some((kind, bytes)) = state.manifests.get(name) else {
        return error(404, "MANIFEST_UNKNOWN");
    };
    let accepted = request.header("accept").unwrap_or_default();
    if !accepted.split(',').any(|one| one.trim() == kind) {
        return error(406, "MANIFEST_UNKNOWN");
    }
    let mut reply = Reply::new(200, bytes.clone()).with("Content-Type", kind);
    // Some registries leave it out; of a tag it is what the bytes were when they were put there.
    if name.starts_with("sha256:") {
        reply = reply.with("Docker-Content-Digest", name);
    }
    reply
}

fn content(request: &Request, digest: &str, state: &mut State) -> Reply {
    if request.parameter("sig").as_deref() != Some("s3cret") {
        return error(403, "DENIED");
    }
    let blob = &state.blobs[digest];
    let number = state.asked;
    state.asked += 1;
    let mut reply = Reply::content(request, blob);
    match (state.script)(number, blob.len()) {
        Answer::Right => {}
        Answer::Cut(bytes) => reply.sent = reply.sent.min(bytes),
        Answer::Flip(place) => {
            let place = place.min(reply.body.len() - 1);
            reply.body[place] ^= 1;
        }
        Answer::Status(status) => return error(status, "TOOMANYREQUESTS").with("Retry-After", "1"),
    }
    state.sent += reply.sent as u64;
    reply
}
