//! `warp user`: kubeconfigs for others on this machine's Warp, with the rights they are given and no more.
//!
//! Who has a token is kept in the data directory; what they may do is said by ordinary bindings in the
//! cluster, which this verb makes and removes. A token is written once, into the kubeconfig asked for.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding, Subject};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use warp_apiserver::auth::{UserError, Users, kubeconfig};

use super::up::instance::{Instance, Note};
use crate::cluster::{self, told};
use crate::output::{self, Table};

/// Marks the bindings this verb makes.
const LABEL: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "warp-user";
const DEFAULT_ROLE: &str = "view";
const GROUP: &str = "rbac.authorization.k8s.io";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// The data directory `warp up` was given
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Make a user and write a kubeconfig for them
    Create(Create),
    /// Show who has access, and with which roles
    List,
    /// Take a user's access away at once
    Delete {
        /// Who goes
        name: String,
    },
}

#[derive(clap::Args, Debug)]
struct Create {
    /// What the user is called in roles, events and logs
    name: String,
    /// What they may do: view, edit, admin, cluster-admin, or any ClusterRole [default: view, or what
    /// their groups may do when --group is given]
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// Only in this namespace; without it everywhere
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// A group they are in, for bindings of your own; may be repeated
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// File for the kubeconfig, which must not exist; - is standard output [default: users/NAME.kubeconfig
    /// in the data directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let instance = Instance::at(args.data)?;
    let Some(note) = instance.running()? else {
        bail!(
            "no Warp runs with the data of {}; start one with `warp up`, or name its directory with --data",
            instance.folder.display()
        );
    };
    cluster::block_on(async move {
        let config = cluster::from_file(&instance.kubeconfig(), None).await?;
        let client = Client::try_from(config).context("failed to set up the connection")?;
        let users = Users::of(&instance.folder);
        match args.action {
            Action::Create(asked) => create(&client, &users, &instance, &note, &asked).await,
            Action::List => list(&client, &users).await,
            Action::Delete { name } => delete(&client, &users, &name).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn create(
    client: &Client,
    users: &Users,
    instance: &Instance,
    note: &Note,
    asked: &Create,
) -> anyhow::Result<()> {
    let name = &asked.name;
    users.check(name, &asked.group)?;
    let role = asked.role.as_deref().or_else(|| {
        let alone = asked.group.is_empty();
        alone.then_some(DEFAULT_ROLE)
    });
    if role.is_none() && asked.namespace.is_some() {
        bail!(
            "--namespace says where a role holds, and groups bring their own: name one with --role"
        );
    }
    check_place(client, role, asked.namespace.as_deref()).await?;
    let file = destination(users, asked);
    if let Some(file) = file.as_ref().filter(|file| file.symlink_metadata().is_ok()) {
        bail!(
            "{} exists already and would be lost; choose another file with -o",
            file.display()
        );
    }
    let ca = instance.folder.join("ca.crt");
    let ca =
        std::fs::read_to_string(&ca).with_context(|| format!("failed to read {}", ca.display()))?;
    let token = users.add(name, &asked.group, jiff::Timestamp::now())?;
    let text = kubeconfig(&note.server, &ca, &token, asked.namespace.as_deref());
    let done = async {
        if let Some(role) = role {
            bind(client, name, role, asked.namespace.as_deref()).await?;
        }
        match &file {
            Some(file) => write(file, &text)?,
            None => output::text(&text),
        }
        anyhow::Ok(())
    };
    if let Err(error) = done.await {
        // Half a user is worse than none.
        unbind(client, name).await.ok();
        users.remove(name).ok();
        return Err(error);
    }
    let rights = match (role, &asked.namespace) {
        (Some(role), Some(namespace)) => format!("{role} in namespace {namespace}"),
        (Some(role), None) => format!("{role} everywhere"),
        (None, _) => "what their groups may do".to_owned(),
    };
    output::note(&format!("user {name} may do: {rights}"));
    if let Some(file) = &file {
        output::note(&format!(
            "the kubeconfig is {}; hand it over safely, it is the only copy of the token",
            file.display()
        ));
    }
    Ok(())
}

fn destination(users: &Users, asked: &Create) -> Option<PathBuf> {
    match &asked.output {
        Some(file) if file.as_os_str() == "-" => None,
        Some(file) => Some(file.clone()),
        None => Some(own_file(users, &asked.name)),
    }
}

fn own_file(users: &Users, name: &str) -> PathBuf {
    users.folder().join(format!("{name}.kubeconfig"))
}

/// The role and the namespace must be there: a binding to nothing would only look like access.
async fn check_place(
    client: &Client,
    role: Option<&str>,
    namespace: Option<&str>,
) -> anyhow::Result<()> {
    if let Some(role) = role {
        let roles: Api<ClusterRole> = Api::all(client.clone());
        if roles.get_opt(role).await.map_err(told)?.is_none() {
            bail!(
                "there is no ClusterRole {role:?}; view, edit, admin and cluster-admin are always there, `kubectl get clusterroles` lists all"
            );
        }
    }
    if let Some(namespace) = namespace {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        if namespaces.get_opt(namespace).await.map_err(told)?.is_none() {
            bail!(
                "there is no namespace {namespace:?}; `kubectl create namespace {namespace}` makes it"
            );
        }
    }
    Ok(())
}

async fn bind(
    client: &Client,
    name: &str,
    role: &str,
    namespace: Option<&str>,
) -> anyhow::Result<()> {
    let kind = if namespace.is_some() {
        "RoleBinding"
    } else {
        "ClusterRoleBinding"
    };
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {"name": format!("{MANAGER}:{name}"), "labels": {LABEL: MANAGER}},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": name}],
    });
    let options = PostParams::default();
    let made = if let Some(namespace) = namespace {
        let api: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        let binding = serde_json::from_value(binding)?;
        api.create(&options, &binding).await.map(drop)
    } else {
        let api: Api<ClusterRoleBinding> = Api::all(client.clone());
        let binding = serde_json::from_value(binding)?;
        api.create(&options, &binding).await.map(drop)
    };
    made.map_err(told)
        .with_context(|| format!("failed to give {name} the role {role}"))
}

/// A file only its owner can read, that was not there before.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
    written.with_context(|| format!("failed to write the kubeconfig {}", path.display()))
}

/// The bindings made for users: name of the user → role and where.
async fn bindings(client: &Client) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let ours = ListParams::default().labels(&format!("{LABEL}={MANAGER}"));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut note = |subjects: Option<Vec<Subject>>, told: &str| {
        for subject in subjects.unwrap_or_default() {
            found.entry(subject.name).or_default().push(told.to_owned());
        }
    };
    let everywhere: Api<ClusterRoleBinding> = Api::all(client.clone());
    for binding in everywhere.list(&ours).await.map_err(told)? {
        note(binding.subjects, &binding.role_ref.name);
    }
    let within: Api<RoleBinding> = Api::all(client.clone());
    for binding in within.list(&ours).await.map_err(told)? {
        let namespace = binding.metadata.namespace.unwrap_or_default();
        note(
            binding.subjects,
            &format!("{} in {namespace}", binding.role_ref.name),
        );
    }
    Ok(found)
}

async fn list(client: &Client, users: &Users) -> anyhow::Result<()> {
    let known = users.list()?;
    let roles = bindings(client).await?;
    if known.is_empty() {
        output::note("there are no users but the administrator; `warp user create NAME` makes one");
        return Ok(());
    }
    let mut table = Table::new(["NAME", "ROLES", "GROUPS", "CREATED"]);
    for user in known {
        let roles = roles.get(&user.name).cloned().unwrap_or_default();
        let shown = |list: &[String]| match list {
            [] => "<none>".to_owned(),
            list => list.join(", "),
        };
        table.row([
            user.name,
            shown(&roles),
            shown(&user.groups),
            format!("{:.0}", user.created),
        ]);
    }
    output::result(&table.to_string());
    Ok(())
}

async fn delete(client: &Client, users: &Users, name: &str) -> anyhow::Result<()> {
    // The token first: whatever fails after it, nobody gets in with it any more.
    // A name without a token may still have bindings, if an earlier deletion was broken off.
    let unknown = match users.remove(name) {
        Ok(()) => None,
        Err(error @ UserError::Unknown(_)) => Some(error),
        Err(error) => return Err(error.into()),
    };
    let file = own_file(users, name);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("failed to remove {}: {error}", file.display())
        }
        _ => {}
    }
    unbind(client, name).await?;
    if let Some(unknown) = unknown {
        return Err(unknown.into());
    }
    output::note(&format!("user {name} has no access any more"));
    Ok(())
}

/// Removes the bindings that were made for a user.
async fn unbind(client: &Client, name: &str) -> anyhow::Result<()> {
    let ours = ListParams::default().labels(&format!("{LABEL}={MANAGER}"));
    let binding = format!("{MANAGER}:{name}");
    let everywhere: Api<ClusterRoleBinding> = Api::all(client.clone());
    gone(everywhere.delete(&binding, &DeleteParams::default()).await)?;
    let within: Api<RoleBinding> = Api::all(client.clone());
    for found in within.list(&ours).await.map_err(told)? {
        if found.metadata.name.as_deref() == Some(&binding) {
            let namespace = found.metadata.namespace.unwrap_or_default();
            let here: Api<RoleBinding> = Api::namespaced(client.clone(), &namespace);
            gone(here.delete(&binding, &DeleteParams::default()).await)?;
        }
    }
    Ok(())
}

fn gone<T>(deleted: Result<T, kube::Error>) -> anyhow::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop).map_err(told),
    }
}
