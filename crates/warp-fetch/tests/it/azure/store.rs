//! A store for tests that speaks as much of Azure's blob service as a reader needs, and judges: a request is signed with
//! the account's key over exactly what came, or carries the one shared access signature, or is refused.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};

use crate::serve::{Reply, Request, Serving, unescaped};

pub const KEY: &str = "a2V5IG9mIHRoZSBhY2NvdW50";
pub const SAS: &str = "sv=2021-08-06&sp=rl&sig=s1gn%2Bature";
const ACCOUNT: &str = "acc0unt";
const PAGE: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    CutOnce,
    BusyOnce,
    Flip,
    ChangeAfterFirstRange,
}

#[derive(Default)]
struct State {
    blobs: BTreeMap<String, (Vec<u8>, Option<String>)>,
    open: bool,
    refused: u64,
    trouble: Trouble,
    ranges: u64,
}

pub struct Container {
    serving: Serving,
    state: Arc<Mutex<State>>,
}

impl Container {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let judged = Arc::clone(&state);
        let serving = Serving::start(move |request| judge(request, &mut judged.lock().unwrap()));
        Self { serving, state }
    }

    /// With the account in the path, as emulators have it.
    pub fn endpoint(&self) -> String {
        format!("http://{}/{ACCOUNT}", self.serving.address())
    }

    pub fn put(&self, name: &str, content: Vec<u8>, md5: Option<&str>) {
        let entry = (content, md5.map(str::to_owned));
        self.state
            .lock()
            .unwrap()
            .blobs
            .insert(name.to_owned(), entry);
    }

    pub fn open_to_everybody(&self) {
        self.state.lock().unwrap().open = true;
    }

    pub fn refused(&self) -> u64 {
        self.state.lock().unwrap().refused
    }

    pub fn trouble(&self, trouble: Trouble) {
        let mut state = self.state.lock().unwrap();
        state.trouble = trouble;
        state.ranges = 0;
    }
}

fn judge(request: &Request, state: &mut State) -> Reply {
    if request.header("x-ms-version").is_none() {
        return Reply::new(400, "<Error><Code>MissingRequiredHeader</Code></Error>");
    }
    if !allowed(request, state.open) {
        state.refused += 1;
        return Reply::new(403, "<Error><Code>AuthenticationFailed</Code></Error>");
    }
    let Some(rest) = request.path.strip_prefix(&format!("/{ACCOUNT}/models")) else {
        return Reply::new(404, "<Error><Code>ContainerNotFound</Code></Error>");
    };
    match rest.strip_prefix('/') {
        None => list(request, state),
        Some(name) => blob(request, &unescaped(name), state),
    }
}

fn allowed(request: &Request, open: bool) -> bool {
    match (request.header("authorization"), request.parameter("sig")) {
        (Some(given), None) => given == format!("SharedKey {ACCOUNT}:{}", signature(request)),
        (None, Some(_)) => request.query.ends_with(SAS),
        (None, None) => open,
        (Some(_), Some(_)) => false,
    }
}

/// The signature of a request as it came.
fn signature(request: &Request) -> String {
    let mut text = format!("{}\n", request.method);
    for name in [
        "content-encoding",
        "content-language",
        "content-length",
        "content-md5",
        "content-type",
        "date",
        "if-modified-since",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "range",
    ] {
        writeln!(text, "{}", request.header(name).unwrap_or_default()).unwrap();
    }
    let own = request
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-ms-"));
    for (name, value) in own {
        writeln!(text, "{name}:{value}").unwrap();
    }
    write!(text, "/{ACCOUNT}{}", request.path).unwrap();
    let parameters: BTreeMap<String, String> = request
        .query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_lowercase(), unescaped(value)))
        .collect();
    for (name, value) in parameters {
        write!(text, "\n{name}:{value}").unwrap();
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(KEY).unwrap());
    STANDARD.encode(hmac::sign(&key, text.as_bytes()))
}

fn tag(content: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, content);
    let short = hash.as_ref()[..6]
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02X}").unwrap();
            text
        });
    format!("0x{short}")
}

fn list(request: &Request, state: &State) -> Reply {
    let given = |name: &str| request.parameter(name).unwrap_or_default();
    if given("restype") != "container" || given("comp") != "list" {
        return Reply::new(
            400,
            "<Error><Code>InvalidQueryParameterValue</Code></Error>",
        );
    }
    let (prefix, marker) = (given("prefix"), given("marker"));
    let all: Vec<&String> = state
        .blobs
        .keys()
        .filter(|name| name.starts_with(&prefix) && **name >= marker)
        .collect();
    let mut text = "<?xml version=\"1.0\"?><EnumerationResults><Blobs>".to_owned();
    for name in all.iter().take(PAGE) {
        let (content, md5) = &state.blobs[*name];
        let sum = md5.as_deref().map_or("<Content-MD5 />".to_owned(), |sum| {
            format!("<Content-MD5>{sum}</Content-MD5>")
        });
        write!(
            text,
            "<Blob><Name>{}</Name><Properties><Etag>{}</Etag><Content-Length>{}</Content-Length>{sum}</Properties></Blob>",
            name.replace('&', "&amp;"),
            tag(content),
            content.len()
        )
        .unwrap();
    }
    text += "</Blobs>";
    match all.get(PAGE) {
        Some(next) => write!(
            text,
            "<NextMarker>{}</NextMarker>",
            next.replace('&', "&amp;")
        )
        .unwrap(),
        None => text += "<NextMarker />",
    }
    Reply::new(200, text + "</EnumerationResults>")
}

fn blob(request: &Request, name: &str, state: &mut State) -> Reply {
    let Some((content, md5)) = state.blobs.get(name).cloned() else {
        return Reply::new(404, "<Error><Code>BlobNotFound</Code></Error>");
    };
    let mut reply = Reply::content(request, &content);
    let mut tag = tag(&content);
    if request.header("range").is_some() {
        state.ranges += 1;
        match state.trouble {
            Trouble::CutOnce if state.ranges == 1 => reply.sent = reply.body.len() / 2,
            Trouble::BusyOnce if state.ranges == 1 => {
                return Reply::new(503, "<Error><Code>ServerBusy</Code></Error>");
            }
            Trouble::Flip => reply.body[0] ^= 0xff,
            Trouble::ChangeAfterFirstRange if state.ranges > 1 => tag.push('1'),
            _ => {}
        }
    } else if let Some(sum) = md5 {
        reply = reply.with("Content-MD5", sum);
    }
    reply.with("ETag", format!("\"{tag}\""))
}
