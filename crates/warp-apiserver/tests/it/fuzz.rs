//! Random bytes and mutated real requests: the server never panics, and what it says is always a
//! JSON object; a refusal is always a whole Status. Seeded and bounded; the same generators can be
//! pointed at a longer run with `WARP_FUZZ_ROUNDS`.

use serde_json::{Value, json};

use crate::exchange::{Reply, Sent, send};

struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(below.max(1)).expect("small")).expect("small")
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.next(from.len())]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.next(most);
        (0..length)
            .map(|_| u8::try_from(self.next(256)).expect("a byte"))
            .collect()
    }
}

const PATHS: &[&str] = &[
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/configmaps/a",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/pods/a",
    "/api/v1/namespaces/default/pods/a/status",
    "/api/v1/namespaces/default/pods/a/eviction",
    "/api/v1/namespaces/default/pods/a/binding",
    "/api/v1/namespaces/default/pods/a/log",
    "/api/v1/namespaces/default/serviceaccounts/default/token",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/apps/v1/namespaces/default/deployments/a",
    "/apis/apps/v1/namespaces/default/deployments/a/scale",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/authentication.k8s.io/v1/tokenreviews",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/openapi/v3",
    "/apis",
    "/version",
];
const QUERIES: &[&str] = &[
    "",
    "labelSelector=a",
    "labelSelector=a in (b",
    "labelSelector=!!a,,",
    "fieldSelector=metadata.name=a\\,b",
    "fieldSelector===",
    "limit=1",
    "limit=-1&continue=AAAA",
    "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MX0",
    "resourceVersion=99999999999999999999",
    "resourceVersionMatch=Exact&resourceVersion=1",
    "watch=true&timeoutSeconds=1&resourceVersion=1",
    "dryRun=All",
    "fieldManager=f&force=true",
    "fieldManager=f",
    "fieldValidation=Strict",
    "gracePeriodSeconds=-9223372036854775808",
    "propagationPolicy=Orphan&orphanDependents=true",
    "%ff=%00",
];
const TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const BODIES: &[&str] = &[
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"x":"1"},"finalizers":["example.com/a"]},"data":{"k":"v"}}"#,
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"p-"},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"1"}],"resources":{"limits":{"cpu":"1","nvidia.com/gpu":"2"}}}],"volumes":[{"name":"v","emptyDir":{}}]}}"#,
    r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"as.b.c"},"spec":{"group":"b.c","names":{"plural":"as","kind":"A"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.x > oldSelf.x || has(self.x)"}],"properties":{"x":{"type":"integer","default":1,"minimum":0},"l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"],"items":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}}}}}}}}}}]}}"#,
    r#"[{"op":"test","path":"/a/0/-1","value":null},{"op":"move","from":"/metadata","path":"/metadata/labels"},{"op":"add","path":"/data/~1","value":{}}]"#,
    r#"{"metadata":{"$setElementOrder/finalizers":["a"],"$patch":"replace","ownerReferences":[{"$patch":"delete","uid":"u"}]},"spec":{"$retainKeys":["x"],"template":{"spec":{"containers":[{"name":"c","$patch":"delete"}]}}}}"#,
    "kind: ConfigMap\nmetadata:\n  name: a\n  name: b\ndata: &x {a: *x}\n",
    r#"{"kind":"DeleteOptions","preconditions":{"uid":7},"dryRun":["All",3],"gracePeriodSeconds":1e400}"#,
    r#"{"target":{"name":"n"},"spec":{"token":"a.b.c","expirationSeconds":-1,"replicas":1.5}}"#,
];

fn mutate(random: &mut Random, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.next(4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.next(bytes.len());
        match random.next(5) {
            0 => bytes[at] = u8::try_from(random.next(256)).expect("a byte"),
            1 => drop(bytes.remove(at)),
            2 => bytes.truncate(at),
            3 => {
                let piece =
                    random.pick(&["null", "[]", "{}", "\"\"", "-1", "1e999", "[[[[", "\\u0000"]);
                bytes.splice(at..at, piece.bytes());
            }
            _ => {
                let end = (at + random.next(40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

fn judge(sent: &Sent<'_>, reply: &Reply) {
    let shown = String::from_utf8_lossy(&sent.body);
    let line = format!(
        "{} {} ({}) {shown}",
        sent.method, sent.path, sent.content_type
    );
    let body = reply.json();
    assert!(
        reply.body.len() < 8 << 20,
        "{line}: {} bytes",
        reply.body.len()
    );
    if reply.code < 400 {
        return;
    }
    assert_eq!(body["kind"], "Status", "{line}\n{body}");
    assert_eq!(body["status"], "Failure", "{line}\n{body}");
    assert_eq!(body["code"], u64::from(reply.code), "{line}\n{body}");
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{line}\n{body}"
    );
    assert!(body["metadata"].is_object(), "{line}\n{body}");
}

fn rounds(usual: usize) -> usize {
    let asked = std::env::var("WARP_FUZZ_ROUNDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Offers a definition with this schema, without keeping it.
async fn define(client: &kube::Client, schema: &Value) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let sent = Sent {
        method: "POST",
        path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
        content_type: "application/json",
        accept: "application/json",
        body: definition.to_string().into_bytes(),
    };
    judge(&sent, &send(client, &sent).await);
}

const WORDS: &[&str] = &[
    "self",
    "oldSelf",
    "self.n",
    "self.s",
    "self.l",
    "self.m",
    "x",
    "'a'",
    "1",
    "-1",
    "2.5",
    "true",
    "null",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ".",
    ",",
    ":",
    "?",
    "==",
    "!=",
    "<",
    "&&",
    "||",
    "!",
    "+",
    "/ 0",
    "in",
    "has(self.s)",
    ".all(x, ",
    ".map(x, ",
    ".exists_one(x, ",
    ".size()",
    "size(",
    ".matches('(a+)+$')",
    ".format([1])",
    "dyn(",
    "type(",
    "quantity('1Gi')",
    "duration('1h')",
    ".?s.orValue('')",
    "[?0]",
    "optional.of(1)",
    "// c",
    "\"\\u00e9\"",
    "\n",
    "cel.bind(y, 1, ",
];

#[tokio::test]
async fn any_rule_is_accepted_or_refused_with_a_status() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let mut random = Random(0x5eed_1234_abcd_0002);
    for _ in 0..rounds(400) {
        let mut text = |most: usize| {
            let count = 1 + random.next(most);
            (0..count).map(|_| random.pick(WORDS)).collect::<String>()
        };
        let (rule, message) = (text(9), text(4));
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "n": {"type": "integer"}, "s": {"type": "string", "maxLength": 20},
                "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}},
                "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "x-kubernetes-validations": [{"rule": rule, "messageExpression": message}],
        }}});
        define(&client, &schema).await;
    }
}

/// A schema of random keywords with random values.
fn random_schema(random: &mut Random, depth: usize) -> Value {
    const KEYWORDS: &[&str] = &[
        "type",
        "format",
        "minimum",
        "maxLength",
        "maxItems",
        "pattern",
        "enum",
        "default",
        "nullable",
        "required",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-map-type",
        "uniqueItems",
        "$ref",
        "title",
    ];
    const VALUES: &[&str] = &[
        "\"object\"",
        "\"array\"",
        "\"string\"",
        "\"integer\"",
        "\"map\"",
        "\"set\"",
        "true",
        "false",
        "null",
        "-1",
        "3",
        "1e999",
        "[\"a\"]",
        "[]",
        "{}",
        "\"(\"",
        "\"date-time\"",
        "{\"a\": null}",
        "[null, 1]",
        "99999999999999999999",
    ];
    const NESTED: &[&str] = &[
        "items",
        "additionalProperties",
        "not",
        "allOf",
        "anyOf",
        "properties",
    ];
    let mut schema = json!({"type": random.pick(&["object", "array", "string", "integer"])});
    for _ in 0..random.next(5) {
        let value = random.pick(VALUES);
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        schema[random.pick(KEYWORDS)] = value;
    }
    if depth > 0 {
        for _ in 0..=random.next(2) {
            let below = random_schema(random, depth - 1);
            let name = random.pick(NESTED);
            schema[name] = match name {
                "properties" => json!({"a": below, "metadata": random_schema(random, 0)}),
                "allOf" | "anyOf" => json!([below]),
                _ => below,
            };
        }
    }
    schema
}

#[tokio::test]
async fn any_schema_is_accepted_or_refused_with_a_status() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let mut random = Random(0x5eed_1234_abcd_0003);
    for _ in 0..rounds(600) {
        let schema = random_schema(&mut random, 3);
        define(&client, &schema).await;
    }
}

/// A field of a protobuf message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short");
    [&[number << 3 | 2, length], content].concat()
}

#[tokio::test]
async fn any_protobuf_body_is_decoded_or_refused_with_a_status() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let mut random = Random(0x5eed_1234_abcd_0004);
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let data = field(2, &[field(1, b"key"), field(2, b"value")].concat());
    let map = [field(1, &field(1, b"name")), data].concat();
    let whole = [field(1, &kind), field(2, &map)].concat();
    let mut accepted = 0;
    for _ in 0..rounds(1500) {
        let mut body = whole.clone();
        for _ in 0..random.next(3) {
            let at = random.next(body.len());
            match random.next(3) {
                0 => body[at] = u8::try_from(random.next(256)).expect("a byte"),
                1 => body.truncate(at.max(1)),
                _ => body.insert(at, u8::try_from(random.next(256)).expect("a byte")),
            }
        }
        let sent = Sent {
            method: "POST",
            path: "/api/v1/namespaces/default/configmaps?dryRun=All",
            content_type: "application/vnd.kubernetes.protobuf",
            accept: "application/json",
            body: [b"k8s\0".as_slice(), &body].concat(),
        };
        let reply = send(&client, &sent).await;
        judge(&sent, &reply);
        accepted += u32::from(reply.code == 201);
    }
    assert!(accepted > 0, "the unchanged body is a config map");
}

#[tokio::test]
async fn any_request_is_answered_with_an_object_or_a_status() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let mut random = Random(0x5eed_1234_abcd_0001);
    for _ in 0..rounds(3000) {
        let mut path = random.pick(PATHS).to_owned();
        if random.next(10) == 0 {
            let at = 1 + random.next(path.len() - 1);
            path.insert_str(
                at,
                random.pick(&["/", "%2f", "..", "%zz", "a", "%00", "//"]),
            );
        }
        let query = random
            .pick(QUERIES)
            .replace(' ', "%20")
            .replace('\\', "%5c");
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        let body = match random.next(8) {
            0 => random.bytes(200),
            1 => [b"k8s\0".as_slice(), &random.bytes(100)].concat(),
            2 => Vec::new(),
            _ => {
                let text = random.pick(BODIES);
                mutate(&mut random, text)
            }
        };
        let method = random.pick(&["GET", "POST", "PUT", "PATCH", "DELETE", "PATCH", "POST"]);
        let sent = Sent {
            method,
            path: &path,
            content_type: random.pick(TYPES),
            accept: random.pick(&[
                "application/json",
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,*/*",
                "text/html",
                ";;,",
            ]),
            body,
        };
        let reply = send(&client, &sent).await;
        judge(&sent, &reply);
    }
    // Whatever happened, the server still works.
    let (code, answer) =
        crate::exchange::json(&client, "GET", "/api/v1/namespaces/default", &Value::Null).await;
    assert_eq!(code, 200, "{answer}");
}
