//! Rights on ours and on a real control plane: what every server grants by default, who is let do what
//! by it, acting as others, and roles that gather. The refusals' words are compared in `requests/access.yaml`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use warp_testkit::{Cluster, PATIENCE, until};

use crate::exchange::{Mask, json, json_as};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

/// What every subject asks. Writes are rehearsals, watches begin at a revision that cannot be: whoever is
/// let through is told something else than 403, at once.
const REQUESTS: [&str; 49] = [
    "GET /",
    "GET /api",
    "GET /apis/apps/v1",
    "GET /version",
    "GET /metrics",
    "GET /openapi/v3",
    "GET /logs/x",
    "GET /api/v1/pods",
    "GET /api/v1/namespaces/m/pods",
    "GET /api/v1/namespaces/m/pods?watch=1&resourceVersion=x",
    "GET /api/v1/namespaces/m/pods/p",
    "GET /api/v1/namespaces/m/pods/p/log",
    "GET /api/v1/namespaces/m/pods/p/status",
    "POST /api/v1/namespaces/m/pods/p/exec?command=x&stdout=1",
    "GET /api/v1/namespaces/m/pods/p/exec?command=x&stdout=1",
    "GET /api/v1/watch/namespaces/m/pods/p/exec?command=x&stdout=1",
    "DELETE /api/v1/namespaces/m/pods/p/exec?command=x&stdout=1",
    "PATCH /api/v1/namespaces/m/pods/p/attach?stdout=1",
    "PUT /api/v1/namespaces/m/pods/p/portforward",
    "DELETE /api/v1/namespaces/m/pods/p/portforward",
    "POST /api/v1/namespaces/m/pods/p/eviction?dryRun=All",
    "POST /api/v1/namespaces/m/pods/p/binding?dryRun=All",
    "GET /api/v1/namespaces/m/pods/p/proxy/x",
    "POST /api/v1/namespaces/m/pods?dryRun=All",
    "DELETE /api/v1/namespaces/m/pods?dryRun=All",
    "GET /api/v1/namespaces/m/secrets",
    "GET /api/v1/namespaces/m/secrets/s",
    "POST /api/v1/namespaces/m/secrets?dryRun=All",
    "GET /api/v1/namespaces/m/configmaps/c",
    "PATCH /api/v1/namespaces/m/configmaps/c?dryRun=All",
    "DELETE /api/v1/namespaces/m/configmaps/c?dryRun=All",
    "POST /api/v1/namespaces/m/serviceaccounts/s/token?dryRun=All",
    "GET /api/v1/namespaces/m/resourcequotas",
    "POST /api/v1/namespaces/m/resourcequotas?dryRun=All",
    "GET /api/v1/namespaces/m",
    "GET /api/v1/namespaces",
    "DELETE /api/v1/namespaces/nothing?dryRun=All",
    "GET /api/v1/nodes",
    "PATCH /api/v1/nodes/n/status?dryRun=All",
    "GET /api/v1/persistentvolumes",
    "POST /apis/apps/v1/namespaces/m/deployments?dryRun=All",
    "PATCH /apis/apps/v1/namespaces/m/deployments/d/scale?dryRun=All",
    "POST /apis/batch/v1/namespaces/m/jobs?dryRun=All",
    "PUT /apis/coordination.k8s.io/v1/namespaces/m/leases/l?dryRun=All",
    "GET /apis/rbac.authorization.k8s.io/v1/namespaces/m/roles",
    "POST /apis/rbac.authorization.k8s.io/v1/namespaces/m/rolebindings?dryRun=All",
    "POST /apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All",
    "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
    "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
];

/// A server of each sort.
struct Both {
    real: Cluster,
    ours: Cluster,
}

impl Both {
    async fn start() -> Self {
        Self {
            real: Cluster::real().start().await.expect("a real cluster"),
            ours: Cluster::embedded().start().await.expect("ours"),
        }
    }

    async fn clients(&self) -> [Client; 2] {
        [
            self.real.client().await.expect("its client"),
            self.ours.client().await.expect("ours"),
        ]
    }
}

async fn make(client: &Client, path: &str, object: &Value) {
    let (code, answer) = json(client, "POST", path, object).await;
    assert_eq!(code, 201, "{path}: {answer}");
}

fn subject(kind: &str, name: &str) -> Value {
    match kind {
        "ServiceAccount" => json!({"kind": kind, "name": name, "namespace": "m"}),
        _ => json!({"kind": kind, "name": name, "apiGroup": GROUP}),
    }
}

fn binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

fn mask(user: &str, groups: &[&str]) -> Mask {
    let user = std::iter::once(("Impersonate-User", user));
    let groups = groups.iter().map(|group| ("Impersonate-Group", *group));
    user.chain(groups)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The six who hold a role: as a user, by a group and as a service account, everywhere and in one namespace.
fn subjects(number: usize) -> [(&'static str, &'static str, String, Mask); 6] {
    let of = |place: &'static str, kind: &'static str| {
        let short = kind.to_lowercase();
        let name = format!("{short}-{place}-{number}");
        let mask = match kind {
            "User" => mask(&name, &[]),
            "Group" => mask("member", &[&name]),
            _ => mask(&format!("system:serviceaccount:m:{name}"), &[]),
        };
        (place, kind, name, mask)
    };
    [
        of("everywhere", "User"),
        of("everywhere", "Group"),
        of("everywhere", "ServiceAccount"),
        of("here", "User"),
        of("here", "Group"),
        of("here", "ServiceAccount"),
    ]
}

async fn give(client: &Client, roles: &[String]) {
    make(
        client,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "m"}}),
    )
    .await;
    for (number, role) in roles.iter().enumerate() {
        for (place, kind, name, _) in subjects(number) {
            let object = binding(&name, role, &subject(kind, &name));
            let path = match place {
                "everywhere" => format!("{RBAC}/clusterrolebindings"),
                _ => format!("{RBAC}/namespaces/m/rolebindings"),
            };
            make(client, &path, &object).await;
        }
    }
}

/// The words of a refusal for want of rights; nothing for every other answer.
async fn refusal(client: &Client, request: &str, mask: &Mask) -> Option<String> {
    let (method, path) = request.split_once(' ').expect("METHOD PATH");
    let body = if matches!(method, "GET" | "DELETE") {
        Value::Null
    } else {
        json!({})
    };
    let (code, answer) = json_as(client, method, path, &body, mask).await;
    let message = answer["message"].as_str().unwrap_or_default();
    (code == 403).then(|| message.to_owned())
}

/// Both servers say the same. The real one names no right when a GET that runs something lacks `create`.
fn same(real: Option<&String>, ours: Option<&String>) -> bool {
    match (real, ours) {
        (Some(real), Some(ours)) => {
            real == ours || (real.ends_with("forbidden: ") && ours.starts_with(real.as_str()))
        }
        (real, ours) => real == ours,
    }
}

/// The default objects of a kind by name, without what differs between any two servers.
async fn defaults(client: &Client, plural: &str) -> BTreeMap<String, Value> {
    let path = format!("{RBAC}/{plural}?labelSelector=kubernetes.io/bootstrapping%3Drbac-defaults");
    let (_, list) = json(client, "GET", &path, &Value::Null).await;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .into_iter()
        .map(|mut object| {
            let meta = object["metadata"].take();
            object["metadata"] =
                json!({"labels": meta["labels"], "annotations": meta["annotations"]});
            let name = meta["name"].as_str().unwrap_or_default().to_owned();
            (name, object)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_roles_allow_what_they_allow_on_a_real_server() {
    let both = Both::start().await;
    let [real, ours] = both.clients().await;
    for plural in ["clusterroles", "clusterrolebindings"] {
        let own = defaults(&ours, plural).await;
        assert!(own.len() > 10, "{own:?}");
        // The real controller fills the gathering roles in its own time.
        until(
            "the real server's defaults to be ours",
            PATIENCE,
            || async {
                let theirs = defaults(&real, plural).await;
                Ok(own
                    .iter()
                    .all(|(name, object)| theirs.get(name) == Some(object))
                    .then_some(()))
            },
        )
        .await
        .unwrap_or_else(|error| panic!("{plural} {error}: {own:#?}"));
    }
    let roles: Vec<String> = defaults(&ours, "clusterroles").await.into_keys().collect();
    tokio::join!(give(&real, &roles), give(&ours, &roles));
    let mut asked: Vec<(String, String, Mask)> = Vec::new();
    for (number, role) in roles.iter().enumerate() {
        for (place, kind, _, mask) in subjects(number) {
            let who = format!("{role} {place} as {kind}");
            asked.extend(REQUESTS.map(|request| (who.clone(), request.to_owned(), mask.clone())));
        }
    }
    let count = asked.len();
    assert!(count >= 20 * 40 * 6, "{count}");
    // A real server learns of bindings a moment later: whatever differs is asked again.
    let mut rounds = 0;
    let refused = std::sync::atomic::AtomicUsize::new(0);
    loop {
        let (real, ours) = (&real, &ours);
        let answers = asked.into_iter().map(|(who, request, mask)| async move {
            let (theirs, own) = tokio::join!(
                refusal(real, &request, &mask),
                refusal(ours, &request, &mask)
            );
            (who, request, mask, theirs, own)
        });
        let different: Vec<_> = futures::stream::iter(answers)
            .buffer_unordered(16)
            .filter(|(_, _, _, theirs, own)| {
                let same = same(theirs.as_ref(), own.as_ref());
                if same && own.is_some() {
                    refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                std::future::ready(!same)
            })
            .collect()
            .await;
        rounds += 1;
        if different.is_empty() {
            break;
        }
        assert!(
            rounds < 20,
            "{} of {count} verdicts differ: {different:#?}",
            different.len()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
        asked = different
            .into_iter()
            .map(|(who, request, mask, _, _)| (who, request, mask))
            .collect();
    }
    let refused = refused.into_inner();
    assert!(refused > 1000 && count - refused > 1000, "{refused}");
    println!("{count} verdicts are equal, {refused} of them refusals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_who_may_act_as_others_do() {
    let both = Both::start().await;
    for client in both.clients().await {
        make(
            &client,
            "/api/v1/namespaces",
            &json!({"metadata": {"name": "m"}}),
        )
        .await;
        make(
            &client,
            "/api/v1/namespaces/m/serviceaccounts",
            &json!({"metadata": {"name": "robot"}}),
        )
        .await;
        let role = json!({"metadata": {"name": "masks"}, "rules": [
            {"apiGroups": [""], "resources": ["users"], "resourceNames": ["ada"], "verbs": ["impersonate"]},
            {"apiGroups": [""], "resources": ["groups"], "resourceNames": ["team"], "verbs": ["impersonate"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
        ]});
        make(&client, &format!("{RBAC}/clusterroles"), &role).await;
        let bound = binding("masks", "masks", &subject("ServiceAccount", "robot"));
        make(&client, &format!("{RBAC}/clusterrolebindings"), &bound).await;
        let bound = binding("ada", "view", &subject("User", "ada"));
        make(
            &client,
            &format!("{RBAC}/namespaces/m/rolebindings"),
            &bound,
        )
        .await;
    }
    let robots = [
        both.real.client_as("m", "robot").await.expect("a robot"),
        both.ours.client_as("m", "robot").await.expect("a robot"),
    ];
    let path = "/api/v1/namespaces/m/configmaps";
    for robot in &robots {
        until("ada's rights to be known", PATIENCE, || async {
            let (code, _) = json_as(robot, "GET", path, &Value::Null, &mask("ada", &[])).await;
            Ok((code == 200).then_some(()))
        })
        .await
        .expect("ada reads through the robot");
    }
    let with = |name: &str, value: &str| {
        let mut mask = mask("ada", &[]);
        mask.push((name.to_owned(), value.to_owned()));
        mask
    };
    for mask in [
        Mask::new(),
        mask("ada", &["team"]),
        mask("ada", &["other"]),
        mask("ada", &["system:masters"]),
        mask("bob", &[]),
        mask("system:anonymous", &[]),
        mask("system:serviceaccount:m:robot", &[]),
        mask("system:serviceaccount:kube-system:default", &[]),
        mask("system:serviceaccount:not-one", &[]),
        with("Impersonate-Extra-Scopes", "a"),
        with("Impersonate-Extra-Other", "a"),
        with("Impersonate-Uid", "1"),
        vec![("Impersonate-Group".to_owned(), "team".to_owned())],
        vec![("Impersonate-Uid".to_owned(), "1".to_owned())],
    ] {
        let mut answers = Vec::new();
        for robot in &robots {
            let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
            let (code, mut answer) = json_as(robot, "POST", path, &json!({}), &mask).await;
            // What a token tells about itself differs from token to token.
            if let Some(info) = answer.pointer_mut("/status/userInfo")
                && mask.is_empty()
            {
                *info = json!({"username": info["username"], "groups": info["groups"]});
            }
            answers.push((code, answer["message"].clone(), answer["status"].clone()));
        }
        assert_eq!(answers[0], answers[1], "{mask:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_gathers_what_others_are_labelled_to_give() {
    let both = Both::start().await;
    let rule = |resource: &str| json!([{"apiGroups": ["x.io"], "resources": [resource], "verbs": ["get"]}]);
    let mut seen = Vec::new();
    for client in both.clients().await {
        let roles = format!("{RBAC}/clusterroles");
        let sees = async |name: &str, found: fn(&Value) -> bool| {
            let path = format!("{roles}/{name}");
            until(&format!("{name} to have gathered"), PATIENCE, || async {
                let (_, role) = json(&client, "GET", &path, &Value::Null).await;
                Ok(found(&role).then(|| role["rules"].clone()))
            })
            .await
            .expect("it gathers")
        };
        let mut told = Vec::new();
        for (name, resource) in [("b-part", "bees"), ("a-part", "ants")] {
            let part = json!({"metadata": {"name": name, "labels": {
                "team": "insects", "rbac.authorization.k8s.io/aggregate-to-view": "true",
            }}, "rules": rule(resource)});
            make(&client, &roles, &part).await;
        }
        let whole = json!({"metadata": {"name": "whole"}, "rules": rule("mine"),
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"team": "insects"}}]}});
        make(&client, &roles, &whole).await;
        let gathered =
            |role: &Value| role.to_string().contains("bees") && role.to_string().contains("ants");
        told.push(sees("whole", gathered).await);
        // What `view` gathers reaches `edit` and `admin`, which gather it in turn.
        sees("admin", gathered).await;
        let path = format!("{roles}/b-part");
        let (code, gone) = json(&client, "DELETE", &path, &Value::Null).await;
        assert_eq!(code, 200, "{gone}");
        let left = |role: &Value| !role.to_string().contains("bees");
        told.push(sees("whole", left).await);
        sees("admin", left).await;
        seen.push(told);
    }
    assert_eq!(seen[0], seen[1]);
}
