//! Behaviour of the protobuf decoder.

use proptest::prelude::*;
use serde_json::json;

use super::{DecodeError, MAGIC, decode, go_duration};

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        #[allow(clippy::cast_possible_truncation)]
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[allow(clippy::cast_possible_truncation)]
    out.push(value as u8);
}

/// A message being written by hand.
#[derive(Default, Clone)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(mut self, number: u64, value: &[u8]) -> Self {
        varint(number << 3 | 2, &mut self.0);
        varint(value.len() as u64, &mut self.0);
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, number: u64, value: &str) -> Self {
        self.bytes(number, value.as_bytes())
    }

    fn message(self, number: u64, value: &Self) -> Self {
        self.bytes(number, &value.0)
    }

    fn number(mut self, number: u64, value: u64) -> Self {
        varint(number << 3, &mut self.0);
        varint(value, &mut self.0);
        self
    }

    fn pair(self, number: u64, key: &str, value: &[u8]) -> Self {
        self.message(number, &Self::default().text(1, key).bytes(2, value))
    }
}

fn body(api_version: &str, kind: &str, raw: &Message) -> Vec<u8> {
    let meta = Message::default().text(1, api_version).text(2, kind);
    let envelope = Message::default()
        .message(1, &meta)
        .message(2, raw)
        .text(3, "")
        .text(4, "");
    [&MAGIC[..], &envelope.0].concat()
}

#[test]
fn a_deployment_keeps_zero_replicas_and_drops_other_zeros() {
    let resources =
        Message::default().pair(1, "nvidia.com/gpu", &Message::default().text(1, "2").0);
    let port = Message::default()
        .text(1, "")
        .number(2, 0)
        .number(3, 80)
        .text(4, "")
        .text(5, "");
    let container = Message::default()
        .text(1, "a")
        .text(2, "nginx")
        .message(6, &port)
        .message(8, &resources)
        .number(16, 0);
    let volume_source = Message::default().message(2, &Message::default().text(1, ""));
    let volume = Message::default().text(1, "v").message(2, &volume_source);
    let pod_spec = Message::default()
        .message(1, &volume)
        .message(2, &container)
        .number(4, 0);
    let labels = Message::default().pair(11, "app", b"web");
    let template = Message::default().message(1, &labels).message(2, &pod_spec);
    let surge = Message::default().number(1, 1).number(2, 0).text(3, "25%");
    let rolling = Message::default().message(2, &surge);
    let strategy = Message::default().text(1, "").message(2, &rolling);
    let spec = Message::default()
        .number(1, 0)
        .message(2, &Message::default().pair(1, "app", b"web"))
        .message(3, &template)
        .message(4, &strategy)
        .number(5, 0);
    let created = Message::default().number(1, 1_700_000_000).number(2, 0);
    let metadata = Message::default()
        .text(1, "d")
        .text(3, "")
        .message(8, &created);
    let raw = Message::default().message(1, &metadata).message(2, &spec);
    let object = decode(&body("apps/v1", "Deployment", &raw)).expect("decodes");
    assert_eq!(
        object,
        json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {"name": "d", "creationTimestamp": "2023-11-14T22:13:20Z"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "volumes": [{"name": "v", "emptyDir": {}}],
                        "containers": [{
                            "name": "a", "image": "nginx",
                            "ports": [{"containerPort": 80}],
                            "resources": {"limits": {"nvidia.com/gpu": "2"}},
                        }],
                    },
                },
                "strategy": {"rollingUpdate": {"maxSurge": "25%"}},
            },
        })
    );
}

#[test]
fn bytes_maps_and_raw_json_become_json() {
    let secret = Message::default()
        .message(1, &Message::default().text(1, "s"))
        .pair(2, "k", b"\xff\x00")
        .text(3, "Opaque");
    let object = decode(&body("v1", "Secret", &secret)).expect("decodes");
    assert_eq!(object["data"], json!({"k": "/wA="}));
    let options = Message::default()
        .number(1, 0)
        .message(2, &Message::default().text(1, "the-uid"))
        .text(4, "Background");
    let object = decode(&body("v1", "DeleteOptions", &options)).expect("decodes");
    assert_eq!(object["gracePeriodSeconds"], 0);
    assert_eq!(object["preconditions"]["uid"], "the-uid");
    assert_eq!(object["propagationPolicy"], "Background");
}

#[test]
fn bodies_that_make_no_sense_are_errors() {
    assert!(matches!(decode(b""), Err(DecodeError::Malformed(_))));
    assert!(matches!(
        decode(b"k8s\0\x0a\xff"),
        Err(DecodeError::Malformed(_))
    ));
    let unknown = body("v1", "Endpoints", &Message::default());
    assert!(matches!(
        decode(&unknown),
        Err(DecodeError::UnknownKind { .. })
    ));
}

#[test]
fn durations_are_printed_as_go_does() {
    let cases = [
        (0, "0s"),
        (1_500_000, "1.5ms"),
        (90_000_000_000, "1m30s"),
        (3_600_000_000_000, "1h0m0s"),
    ];
    for (nanos, expected) in cases {
        assert_eq!(go_duration(nanos), expected);
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
        let raw = Message(bytes);
        for (version, kind) in [("v1", "Pod"), ("batch/v1", "Job"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition")] {
            let _ = decode(&body(version, kind, &raw));
        }
    }

    #[test]
    fn cutting_a_body_short_never_panics(cut in 0usize..60) {
        let container = Message::default().text(1, "a").text(2, "x");
        let spec = Message::default().message(2, &container);
        let whole = body("v1", "Pod", &Message::default().message(2, &spec));
        let _ = decode(&whole[..cut.min(whole.len())]);
    }
}
