//! A store for tests that speaks as much of Google's JSON API as a reader needs, and judges: a claim must be signed by
//! the account's key, for this store and for reading; names are one segment of a path; a generation that is not there
//! any more is not found.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use crate::serve::{Reply, Request, Serving, unescaped};

/// Made for these tests and used nowhere else.
const KEY: &str = include_str!("throwaway.pem");
const PAGE: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    CutOnce,
    WaitOnce,
    Flip,
    ReplaceAfterFirstRange,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (u64, Vec<u8>)>,
    generation: u64,
    open: bool,
    uses: Option<u64>,
    tokens: BTreeMap<String, u64>,
    given: u64,
    trouble: Trouble,
    ranges: u64,
}

pub struct Bucket {
    serving: Serving,
    state: Arc<Mutex<State>>,
}

impl Bucket {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let judged = Arc::clone(&state);
        let serving = Serving::start(move |request| judge(request, &mut judged.lock().unwrap()));
        Self { serving, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.serving.address())
    }

    /// The key as Google gives it out.
    pub fn key(&self) -> String {
        json!({
            "type": "service_account", "client_email": "reader@tests", "private_key": KEY, "private_key_id": "k1",
            "token_uri": format!("{}/token", self.endpoint()),
        })
        .to_string()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn put(&self, name: &str, content: Vec<u8>) {
        self.change(|state| {
            state.generation += 1;
            let entry = (1_700_000_000_000_000 + state.generation, content);
            state.objects.insert(name.to_owned(), entry);
        });
    }

    pub fn open_to_everybody(&self) {
        self.change(|state| state.open = true);
    }

    pub fn uses_of_a_token(&self, uses: u64) {
        self.change(|state| state.uses = Some(uses));
    }

    pub fn tokens_given(&self) -> u64 {
        self.state.lock().unwrap().given
    }

    pub fn trouble(&self, trouble: Trouble) {
        self.change(|state| {
            state.trouble = trouble;
            state.ranges = 0;
        });
    }
}

fn judge(request: &Request, state: &mut State) -> Reply {
    if request.path == "/token" {
        return token(request, state);
    }
    let shown = request.header("authorization").unwrap_or_default();
    let known = shown.strip_prefix("Bearer ");
    let left = known.and_then(|token| state.tokens.get_mut(token));
    let in_time = match left {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    };
    if !(in_time || state.open && known.is_none()) {
        return Reply::new(401, "{\"error\": {\"code\": 401}}");
    }
    let Some(rest) = request.path.strip_prefix("/storage/v1/b/models/o") else {
        return Reply::new(404, "{}");
    };
    match rest.strip_prefix('/') {
        None if rest.is_empty() => list(request, state),
        // A slash in a name must be escaped: what has one is another address.
        Some(name) if !name.contains('/') => object(request, &unescaped(name), state),
        _ => Reply::new(404, "{}"),
    }
}

/// A token for a claim that is right in everything.
fn token(request: &Request, state: &mut State) -> Reply {
    let form = String::from_utf8(request.body.clone()).unwrap();
    let form: BTreeMap<&str, &str> = form
        .split('&')
        .filter_map(|it| it.split_once('='))
        .collect();
    let grant = form.get("grant_type").map(|grant| unescaped(grant));
    let right = request.method == "POST"
        && request.header("content-type") == Some("application/x-www-form-urlencoded")
        && grant.as_deref() == Some("urn:ietf:params:oauth:grant-type:jwt-bearer");
    let host = request.header("host").unwrap();
    if !right || !signed(form.get("assertion").unwrap_or(&""), host) {
        return Reply::new(400, "{\"error\": \"invalid_grant\"}");
    }
    state.given += 1;
    let token = format!("ya29.{}", state.given);
    let uses = state.uses.unwrap_or(u64::MAX);
    state.tokens.insert(token.clone(), uses);
    Reply::new(
        200,
        json!({"access_token": token, "expires_in": 3599, "token_type": "Bearer"}).to_string(),
    )
}

fn signed(claim: &str, host: &str) -> bool {
    let lines = KEY.lines().filter(|line| !line.starts_with("-----"));
    let der = STANDARD.decode(lines.collect::<String>()).unwrap();
    let pair = RsaKeyPair::from_pkcs8(&der).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref());
    let Some((text, signature)) = claim.rsplit_once('.') else {
        return false;
    };
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
    if public.verify(text.as_bytes(), &signature).is_err() {
        return false;
    }
    let parts: Vec<Value> = text
        .split('.')
        .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
        .collect();
    let [head, claims] = parts.as_slice() else {
        return false;
    };
    let second = |name: &str| claims[name].as_i64().unwrap_or_default();
    let now = jiff::Timestamp::now().as_second();
    head["alg"] == "RS256"
        && head["kid"] == "k1"
        && claims["iss"] == "reader@tests"
        && claims["aud"] == format!("http://{host}/token")
        && claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_only"
        && second("exp") - second("iat") <= 3600
        && now.abs_diff(second("iat")) < 300
}

fn resource(name: &str, (generation, content): &(u64, Vec<u8>)) -> Value {
    json!({
        "name": name, "size": content.len().to_string(), "generation": generation.to_string(),
        "crc32c": STANDARD.encode(crc32c(content).to_be_bytes()),
    })
}

fn list(request: &Request, state: &State) -> Reply {
    let prefix = request.parameter("prefix").unwrap_or_default();
    let after = request.parameter("pageToken");
    let after = after.map(|token| token.strip_prefix("after/ ").unwrap().to_owned());
    let all: Vec<&String> = state
        .objects
        .keys()
        .filter(|name| {
            name.starts_with(&prefix) && after.as_ref().is_none_or(|after| *name > after)
        })
        .collect();
    let items = all
        .iter()
        .take(PAGE)
        .map(|name| resource(name, &state.objects[*name]));
    let mut page = json!({"items": items.collect::<Vec<_>>()});
    if all.is_empty() {
        // As Google leaves it out.
        page = json!({});
    }
    if all.len() > PAGE {
        page["nextPageToken"] = json!(format!("after/ {}", all[PAGE - 1]));
    }
    Reply::new(200, page.to_string())
}

fn object(request: &Request, name: &str, state: &mut State) -> Reply {
    let Some(found) = state.objects.get(name).cloned() else {
        return Reply::new(404, "{}");
    };
    if request.parameter("alt").as_deref() != Some("media") {
        return Reply::new(200, resource(name, &found).to_string());
    }
    if request.parameter("generation") != Some(found.0.to_string()) {
        return Reply::new(404, "{}");
    }
    let mut reply = Reply::content(request, &found.1).with("ETag", "\"of the generation\"");
    if request.header("range").is_some() {
        state.ranges += 1;
        match state.trouble {
            Trouble::CutOnce if state.ranges == 1 => reply.sent = reply.body.len() / 2,
            Trouble::WaitOnce if state.ranges == 1 => {
                return Reply::new(429, "{}").with("Retry-After", "1");
            }
            Trouble::Flip => reply.body[0] ^= 0xff,
            Trouble::ReplaceAfterFirstRange if state.ranges == 1 => {
                let entry = state.objects.get_mut(name).unwrap();
                entry.0 += 1;
            }
            _ => {}
        }
    }
    reply
}

/// Bit by bit, as the polynomial says.
fn crc32c(content: &[u8]) -> u32 {
    !content.iter().fold(!0_u32, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state, _| {
            let odd = state & 1 == 1;
            (state >> 1) ^ if odd { 0x82f6_3b78 } else { 0 }
        })
    })
}
