//! `warp install`: print what `kubectl apply` needs. The files of `deploy/` are the only source;
//! this command assembles them and changes a few fields.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warp_api::crd;

use crate::output;

/// Image the files name.
const DEFAULT_IMAGE: &str = "warp:latest";
/// Namespace the files name.
pub(crate) const NAMESPACE: &str = "warp-system";
/// The operator's service account.
pub(crate) const OPERATOR: &str = "warp-operator";
const MANAGER: [&str; 2] = [
    include_str!("../../../../deploy/manager/namespace.yaml"),
    include_str!("../../../../deploy/manager/deployment.yaml"),
];
const ACCOUNT: [&str; 2] = [
    include_str!("../../../../deploy/rbac/account/service-account.yaml"),
    include_str!("../../../../deploy/rbac/account/leader-election.yaml"),
];
const USER_ROLES: &str = include_str!("../../../../deploy/rbac/account/user-roles.yaml");
const CLUSTER_ROLE: &str = include_str!("../../../../deploy/rbac/cluster/role.yaml");
const NAMESPACED_ROLE: &str = include_str!("../../../../deploy/rbac/namespaced/role.yaml");

/// Rights that are apart, with the operator's flag that uses them.
struct Apart {
    asked: fn(&Args) -> bool,
    flag: &'static str,
    role: &'static str,
}

/// All of them. `warp up` turns every one on.
const APART: [Apart; 4] = [
    Apart {
        asked: |args| args.isolate_tenants,
        flag: "--isolate-tenants",
        role: include_str!("../../../../deploy/isolation/role.yaml"),
    },
    Apart {
        asked: |args| args.node_copies,
        flag: "--node-copies",
        role: include_str!("../../../../deploy/node-copies/role.yaml"),
    },
    Apart {
        asked: |args| args.show_pending,
        flag: "--show-pending",
        role: include_str!("../../../../deploy/show-pending/role.yaml"),
    },
    Apart {
        asked: |args| args.autoscalers,
        flag: "--autoscalers",
        role: include_str!("../../../../deploy/autoscalers/role.yaml"),
    },
];

#[derive(clap::Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Args {
    /// Print the manifests; pipe them into `kubectl apply -f -`
    #[arg(long)]
    print: bool,
    /// Namespace the operator runs in
    #[arg(long, default_value = NAMESPACE)]
    namespace: String,
    /// Serve the workloads of this namespace only, with a role for it instead of the whole cluster
    #[arg(long, value_name = "NAMESPACE")]
    namespaced: Option<String>,
    /// Let the operator bind the owners of tenants and shut their namespaces off, with a role for it
    #[arg(long, conflicts_with = "namespaced")]
    isolate_tenants: bool,
    /// Let the operator keep copies of models on nodes and label those, with a role for it
    #[arg(long, conflicts_with = "namespaced")]
    node_copies: bool,
    /// Let the operator show work that waits to Cluster Autoscaler and Karpenter, with a role for it
    #[arg(long, conflicts_with = "namespaced")]
    show_pending: bool,
    /// Let the operator tell HorizontalPodAutoscalers and KEDA how to scale services, with a role for it
    #[arg(long, conflicts_with = "namespaced")]
    autoscalers: bool,
    /// Image of the operator
    #[arg(long)]
    image: Option<String>,
    /// Only the CRDs
    #[arg(long)]
    crds_only: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.print {
        bail!("warp install only prints: use warp install --print | kubectl apply -f -");
    }
    if args.image.is_none() && !args.crds_only {
        output::note(&format!(
            "the manifests name the image {DEFAULT_IMAGE}, which no registry serves: load it into the nodes (make docker-build) or push your own and say --image REGISTRY/warp:TAG"
        ));
    }
    output::text(&manifests(args)?);
    Ok(ExitCode::SUCCESS)
}

/// The rights apart that are asked for.
fn apart(args: &Args) -> impl Iterator<Item = &'static Apart> {
    APART.iter().filter(|apart| (apart.asked)(args))
}

fn manifests(args: &Args) -> anyhow::Result<String> {
    let mut objects = crd::all();
    if !args.crds_only {
        let role = if args.namespaced.is_some() {
            NAMESPACED_ROLE
        } else {
            CLUSTER_ROLE
        };
        // The namespace comes first, what lives in it after, the Deployment last.
        let mut files = vec![MANAGER[0], ACCOUNT[0], ACCOUNT[1], role, USER_ROLES];
        files.extend(apart(args).map(|apart| apart.role));
        files.push(MANAGER[1]);
        for file in files {
            for document in documents(file)? {
                objects.push(adapted(document, args));
            }
        }
    }
    let mut out = String::new();
    for object in objects {
        let yaml = serde_saphyr::to_string(&object).context("failed to write YAML")?;
        out.push_str("---\n");
        out.push_str(&yaml);
        if !yaml.ends_with('\n') {
            out.push('\n');
        }
    }
    Ok(out)
}

/// The operator's identity and rights, as a cluster gets them, and the namespace they are in.
pub(crate) fn rights() -> anyhow::Result<Vec<Value>> {
    let mut files = vec![MANAGER[0], ACCOUNT[0], CLUSTER_ROLE];
    files.extend(APART.iter().map(|apart| apart.role));
    files.push(USER_ROLES);
    let documents: Vec<Vec<Value>> = files.into_iter().map(documents).collect::<Result<_, _>>()?;
    Ok(documents.concat())
}

fn documents(file: &str) -> anyhow::Result<Vec<Value>> {
    let parts = file
        .split("\n---\n")
        .filter(|part| part.lines().any(|line| !line.starts_with('#')));
    parts
        .map(|part| serde_saphyr::from_str(part).context("failed to read an embedded manifest"))
        .collect()
}

/// One thing the operator has to be allowed.
#[derive(Clone, Debug)]
pub(super) struct Right {
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) verb: String,
    /// Where; `None` for everywhere.
    pub(super) namespace: Option<String>,
}

/// What an operator that runs in `namespace` and serves one or all namespaces has to be allowed, by the
/// roles that are installed with it.
pub(super) fn needed(namespace: &str, served: Option<&str>) -> anyhow::Result<Vec<Right>> {
    let args = Args {
        print: true,
        namespace: namespace.to_owned(),
        namespaced: served.map(str::to_owned),
        isolate_tenants: false,
        node_copies: false,
        show_pending: false,
        autoscalers: false,
        image: None,
        crds_only: false,
    };
    let role = if served.is_some() {
        NAMESPACED_ROLE
    } else {
        CLUSTER_ROLE
    };
    let mut rights = Vec::new();
    for document in [documents(ACCOUNT[1])?, documents(role)?].concat() {
        let document = adapted(document, &args);
        let place = document["metadata"]["namespace"].as_str();
        for rule in document["rules"].as_array().into_iter().flatten() {
            let texts = |key: &str| -> Vec<String> {
                let list = rule[key].as_array().into_iter().flatten();
                list.filter_map(Value::as_str).map(str::to_owned).collect()
            };
            for group in texts("apiGroups") {
                for resource in texts("resources") {
                    for verb in texts("verbs") {
                        rights.push(Right {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                            namespace: place.map(str::to_owned),
                        });
                    }
                }
            }
        }
    }
    Ok(rights)
}

/// Puts the chosen namespaces and image in.
fn adapted(mut object: Value, args: &Args) -> Value {
    let own = json!(args.namespace);
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "Namespace" {
        object["metadata"]["name"] = own.clone();
    }
    let place = object["metadata"]["namespace"].as_str().map(str::to_owned);
    match place.as_deref() {
        Some(NAMESPACE) => object["metadata"]["namespace"] = own.clone(),
        Some(_) => {
            if let Some(served) = &args.namespaced {
                object["metadata"]["namespace"] = json!(served);
            }
        }
        None => {}
    }
    // Bindings of two operators with a namespace each must not replace one another.
    if kind == "ClusterRoleBinding" && args.namespace != NAMESPACE {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        object["metadata"]["name"] = json!(format!("{name}-{}", args.namespace));
    }
    // Looked up and not indexed: indexing would leave `subjects: null` in every object without any.
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["namespace"] = own.clone();
    }
    if kind == "Deployment" {
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        if let Some(image) = &args.image {
            container["image"] = json!(image);
        }
        if let (Some(served), Some(flags)) = (&args.namespaced, container["args"].as_array_mut()) {
            flags.push(json!(format!("--namespace={served}")));
        }
        if let Some(flags) = container["args"].as_array_mut() {
            flags.extend(apart(args).map(|apart| json!(apart.flag)));
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args {
            print: true,
            namespace: NAMESPACE.to_owned(),
            namespaced: None,
            isolate_tenants: false,
            node_copies: false,
            show_pending: false,
            autoscalers: false,
            image: None,
            crds_only: false,
        }
    }

    fn read(args: &Args) -> Vec<Value> {
        let text = manifests(args).unwrap();
        let parts = text.split("---\n").filter(|part| !part.trim().is_empty());
        parts
            .map(|part| serde_saphyr::from_str(part).unwrap())
            .collect()
    }

    fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
        objects
            .iter()
            .filter(|object| object["kind"] == kind)
            .collect()
    }

    #[test]
    fn everything_needed_is_printed_in_an_order_that_applies() {
        let objects = read(&args());
        let kinds: Vec<&str> = objects
            .iter()
            .filter_map(|object| object["kind"].as_str())
            .collect();
        let at = |kind| kinds.iter().position(|have| *have == kind).unwrap();
        assert!(at("CustomResourceDefinition") < at("Namespace"));
        assert!(at("Namespace") < at("ServiceAccount"));
        assert!(at("ClusterRole") < at("Deployment"));
    }

    #[test]
    fn namespaces_and_image_are_put_in_everywhere() {
        let chosen = Args {
            namespace: "gpu".to_owned(),
            namespaced: Some("team".to_owned()),
            image: Some("example/warp:1".to_owned()),
            ..args()
        };
        let objects = read(&chosen);
        let deployment = of_kind(&objects, "Deployment")[0];
        assert_eq!(deployment["metadata"]["namespace"], "gpu");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "example/warp:1");
        assert!(
            container["args"]
                .as_array()
                .unwrap()
                .contains(&json!("--namespace=team"))
        );
        let roles = of_kind(&objects, "Role");
        let places: Vec<&str> = roles
            .iter()
            .filter_map(|role| role["metadata"]["namespace"].as_str())
            .collect();
        assert!(
            places.contains(&"team") && places.contains(&"gpu"),
            "{places:?}"
        );
        for binding in of_kind(&objects, "RoleBinding") {
            assert_eq!(binding["subjects"][0]["namespace"], "gpu");
        }
        assert!(!manifests(&chosen).unwrap().contains(NAMESPACE));
    }

    #[test]
    fn nothing_is_printed_that_the_files_do_not_say() {
        fn empty(value: &Value, path: &str, found: &mut Vec<String>) {
            match value {
                Value::Null => found.push(path.to_owned()),
                Value::Object(fields) => {
                    for (key, value) in fields {
                        empty(value, &format!("{path}.{key}"), found);
                    }
                }
                Value::Array(items) => {
                    for item in items {
                        empty(item, &format!("{path}[]"), found);
                    }
                }
                _ => {}
            }
        }
        let served = Args {
            namespaced: Some("team".to_owned()),
            namespace: "gpu".to_owned(),
            ..args()
        };
        for args in [args(), served] {
            for object in read(&args) {
                let mut found = Vec::new();
                empty(
                    &object,
                    object["kind"].as_str().unwrap_or_default(),
                    &mut found,
                );
                assert!(found.is_empty(), "null: {found:?}");
            }
        }
    }

    #[test]
    fn rights_that_are_apart_come_with_the_flag_that_uses_them() {
        let isolating = Args {
            isolate_tenants: true,
            ..args()
        };
        let copying = Args {
            node_copies: true,
            ..args()
        };
        let showing = Args {
            show_pending: true,
            ..args()
        };
        let telling = Args {
            autoscalers: true,
            ..args()
        };
        for (args, expected) in [
            (args(), [false; 4]),
            (isolating, [true, false, false, false]),
            (copying, [false, true, false, false]),
            (showing, [false, false, true, false]),
            (telling, [false, false, false, true]),
        ] {
            let objects = read(&args);
            let roles = of_kind(&objects, "ClusterRole");
            let granted = |name: &str| roles.iter().any(|role| role["metadata"]["name"] == name);
            let deployment = of_kind(&objects, "Deployment")[0];
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let flags = container["args"].as_array().unwrap();
            let has = |flag: &str| flags.contains(&json!(flag));
            let roles = [
                granted("warp-operator-isolation"),
                granted("warp-operator-node-copies"),
                granted("warp-operator-show-pending"),
                granted("warp-operator-autoscalers"),
            ];
            let flags = APART.each_ref().map(|apart| has(apart.flag));
            assert_eq!((roles, flags), (expected, expected));
        }
    }

    #[test]
    fn an_engine_that_turns_every_flag_on_has_the_rights_of_all() {
        let all = read(&Args {
            isolate_tenants: true,
            node_copies: true,
            show_pending: true,
            autoscalers: true,
            ..args()
        });
        let rights = rights().unwrap();
        for role in of_kind(&all, "ClusterRole") {
            let name = &role["metadata"]["name"];
            let granted = of_kind(&rights, "ClusterRole");
            assert!(
                granted.iter().any(|one| one["metadata"]["name"] == *name),
                "{name}"
            );
        }
    }

    #[test]
    fn crds_only_prints_nothing_else() {
        let objects = read(&Args {
            crds_only: true,
            ..args()
        });
        assert_eq!(
            of_kind(&objects, "CustomResourceDefinition").len(),
            objects.len()
        );
        assert!(!objects.is_empty());
    }
}
