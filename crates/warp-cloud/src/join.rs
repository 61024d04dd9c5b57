//! What a rented virtual machine runs when it first starts: it joins its cluster as the node of its own name, tests its
//! GPUs, and powers itself off when its time is over or its cluster is out of reach. Pure: the same values give the
//! same text, so a launch that is repeated is the same launch.
//!
//! The scripts beside this file never change from machine to machine; what does is in `/etc/warp/machine.env`.

mod token;

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use warp_core::gpu::{self, Vendor};

pub use self::token::{JoinToken, token_id};
use crate::account::Secret;
use crate::provider::Kind;

/// On a node's annotations: `passed`, or why its GPUs do not work.
pub const GPU_TEST: &str = "gpu.warp.dev/gpu-test";
/// On a node's annotations: since when its cloud says that it takes the machine back.
pub const TAKEN_BACK: &str = "gpu.warp.dev/taken-back-since";
/// Keeps work off a node until its GPUs were tested.
pub const STARTING: &str = "gpu.warp.dev/starting";

/// How a machine becomes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kubeadm,
    K3s,
}

impl Way {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubeadm => "kubeadm",
            Self::K3s => "k3s",
        }
    }

    pub fn of(word: &str) -> Option<Self> {
        [Self::Kubeadm, Self::K3s]
            .into_iter()
            .find(|way| way.as_str() == word)
    }
}

/// Everything a machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub way: Way,
    pub cloud: Kind,
    /// Of the machine and of its node.
    pub name: String,
    /// The catalogue's name.
    pub gpu: String,
    pub gpus: u32,
    pub region: String,
    pub instance_type: String,
    /// US dollars for one GPU and hour.
    pub gpu_hour_price: String,
    pub spot: bool,
    /// Namespace and name of the request.
    pub request: (String, String),
    /// Where the API server is reached: `https://host:port`.
    pub server: String,
    /// Who vouches for it, as PEM.
    pub authority: String,
    pub token: JoinToken,
    /// Of Kubernetes, such as `v1.35.4`, or of k3s, such as `v1.35.4+k3s1`.
    pub version: String,
    /// What the account's administrator wants run before.
    pub setup: Option<String>,
    pub power_off_at: Option<Timestamp>,
    /// How long it stays on without its cluster.
    pub alone_seconds: u32,
}

const JOIN: &str = include_str!("join/join.sh");
const WATCH: &str = include_str!("join/watch.sh");
const NOTICE: &str = include_str!("join/notice.sh");
const UNITS: [(&str, &str); 3] = [
    (
        "warp-join.service",
        "[Unit]\nDescription=Joins this machine to its cluster\nWants=network-online.target\n\
         After=network-online.target\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
         ExecStart=/usr/local/sbin/warp-join\nRestart=on-failure\nRestartSec=15\n\n\
         [Install]\nWantedBy=multi-user.target\n",
    ),
    (
        "warp-watch.service",
        "[Unit]\nDescription=Powers this machine off when nobody wants it any more\n\n\
         [Service]\nType=oneshot\nExecStart=/usr/local/sbin/warp-watch\n",
    ),
    (
        "warp-watch.timer",
        "[Unit]\nDescription=Looks every minute whether somebody wants this machine\n\n\
         [Timer]\nOnBootSec=1min\nOnUnitActiveSec=1min\n\n[Install]\nWantedBy=timers.target\n",
    ),
];
const NOTICE_UNIT: &str = "[Unit]\nDescription=Says on its node when the cloud takes this machine back\n\
     After=warp-join.service\n\n[Service]\nExecStart=/usr/local/sbin/warp-notice\nRestart=on-failure\n\
     RestartSec=5\n\n[Install]\nWantedBy=multi-user.target\n";
const POWER_OFF_UNIT: &str = "[Unit]\nDescription=Powers this machine off: its time is over\n\n\
     [Service]\nType=oneshot\nExecStart=/usr/bin/systemctl poweroff\n";

/// What the account's administrator wants run before. It is somebody else's text: no place for it is left in ours.
const SETUP: &str = "/etc/warp/setup";

/// One file of the machine.
struct File {
    path: String,
    mode: &'static str,
    text: String,
}

fn file(path: &str, mode: &'static str, text: impl Into<String>) -> File {
    File {
        path: path.to_owned(),
        mode,
        text: text.into(),
    }
}

impl Join {
    /// What the cloud is given to run at the first start: cloud-init, or a script where the cloud takes only that.
    pub fn user_data(&self) -> Secret {
        Secret::new(rendered(self))
    }

    fn cloud_config(&self) -> String {
        let mut text = String::from("#cloud-config\nwrite_files:\n");
        for File {
            path,
            mode,
            text: content,
        } in self.files()
        {
            let _ = write!(
                text,
                "- path: {path}\n  owner: root:root\n  permissions: '{mode}'\n  content: |\n"
            );
            for line in content.lines() {
                let indent = if line.is_empty() { "" } else { "    " };
                let _ = writeln!(text, "{indent}{line}");
            }
        }
        if let Some(setup) = &self.setup {
            let setup = STANDARD.encode(setup);
            let _ = write!(
                text,
                "- path: {SETUP}\n  owner: root:root\n  permissions: '0700'\n  encoding: b64\n  content: {setup}\n"
            );
        }
        text.push_str("runcmd:\n- [systemctl, daemon-reload]\n");
        for unit in self.started() {
            let _ = writeln!(text, "- [systemctl, enable, --now, --no-block, {unit}]");
        }
        text
    }

    fn script(&self) -> String {
        let mut text = String::from("#!/bin/sh\nset -eu\n");
        let setup = self.setup.iter();
        let setup = setup.map(|setup| file(SETUP, "0700", setup.clone()));
        for File {
            path,
            mode,
            text: content,
        } in self.files().into_iter().chain(setup)
        {
            let content = STANDARD.encode(content);
            let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
            let _ = write!(
                text,
                "mkdir -p {folder}\ntouch {path}\nchmod {mode} {path}\necho {content} | base64 -d >{path}\n"
            );
        }
        text.push_str("systemctl daemon-reload\n");
        for unit in self.started() {
            let _ = writeln!(text, "systemctl enable --now --no-block {unit}");
        }
        text
    }

    /// What is started, the switch that ends the machine first: it works however the rest fares.
    fn started(&self) -> Vec<&'static str> {
        let mut units = vec!["warp-watch.timer"];
        if self.power_off_at.is_some() {
            units.push("warp-lifetime.timer");
        }
        units.push("warp-join.service");
        if self.is_noticed() {
            units.push("warp-notice.service");
        }
        units
    }

    /// Whether the machine can ask its cloud whether it is taken back.
    fn is_noticed(&self) -> bool {
        self.spot && matches!(self.cloud, Kind::Aws | Kind::Gcp | Kind::Azure)
    }

    fn files(&self) -> Vec<File> {
        let mut files = vec![
            file("/etc/warp/machine.env", "0600", self.environment()),
            file("/etc/warp/ca.crt", "0644", self.authority.clone()),
            file("/usr/local/sbin/warp-join", "0700", JOIN),
            file("/usr/local/sbin/warp-watch", "0700", WATCH),
        ];
        for (name, text) in UNITS {
            files.push(unit(name, text.to_owned()));
        }
        match self.way {
            Way::Kubeadm => {
                files.push(file("/etc/warp/join.yaml", "0600", self.kubeadm()));
                files.push(file("/etc/warp/cluster.conf", "0600", self.discovery()));
            }
            Way::K3s => files.push(file("/etc/rancher/k3s/config.yaml", "0600", self.k3s())),
        }
        if let Some(at) = self.power_off_at {
            let at = at.strftime("%Y-%m-%d %H:%M:%S UTC");
            let timer = format!(
                "[Unit]\nDescription=When the time of this machine is over\n\n\
                 [Timer]\nOnCalendar={at}\nAccuracySec=1s\n\n[Install]\nWantedBy=timers.target\n"
            );
            files.push(unit("warp-lifetime.timer", timer));
            files.push(unit("warp-lifetime.service", POWER_OFF_UNIT.to_owned()));
        }
        if self.is_noticed() {
            files.push(file("/usr/local/sbin/warp-notice", "0700", NOTICE));
            files.push(unit("warp-notice.service", NOTICE_UNIT.to_owned()));
        }
        files
    }

    fn environment(&self) -> String {
        let ends = self.power_off_at.map(|at| at.as_second().to_string());
        let values = [
            ("NAME", self.name.clone()),
            ("WAY", self.way.as_str().to_owned()),
            ("CLOUD", self.cloud.as_str().to_owned()),
            ("SERVER", self.server.clone()),
            ("VERSION", self.version.clone()),
            (
                "VENDOR",
                self.vendor().map_or("", Vendor::as_str).to_owned(),
            ),
            ("GPUS", self.gpus.to_string()),
            ("POWER_OFF_AT", ends.unwrap_or_default()),
            ("ALONE_SECONDS", self.alone_seconds.to_string()),
        ];
        let lines = values.map(|(name, value)| format!("{name}={}\n", quoted(&value)));
        lines.concat()
    }

    fn vendor(&self) -> Option<Vendor> {
        gpu::named(&self.gpu).first().map(|model| model.vendor)
    }

    /// What the node says of itself: the catalogue's model, so that it is known before any labeller runs.
    fn labels(&self) -> Vec<(String, String)> {
        Rental {
            cloud: self.cloud,
            gpu: &self.gpu,
            gpus: self.gpus,
            region: &self.region,
            instance_type: &self.instance_type,
            gpu_hour_price: &self.gpu_hour_price,
            request: (&self.request.0, &self.request.1),
        }
        .labels()
    }

    fn provider_id(&self) -> String {
        provider_id(self.cloud, &self.name)
    }

    /// The cluster is known by its authority, which is in the file: nothing is trusted on first use.
    fn discovery(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: cluster\n  cluster:\n    server: {}\n    \
             certificate-authority-data: {}\ncontexts:\n- name: cluster\n  context:\n    cluster: cluster\n    \
             user: \"\"\ncurrent-context: cluster\nusers: []\n",
            self.server,
            STANDARD.encode(&self.authority)
        )
    }

    fn kubeadm(&self) -> String {
        let labels = self.labels().into_iter();
        let labels: Vec<String> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery:\n  file:\n    \
             kubeConfigPath: /etc/warp/cluster.conf\n  tlsBootstrapToken: {}\nnodeRegistration:\n  name: {}\n  \
             taints:\n  - key: {STARTING}\n    effect: NoSchedule\n  kubeletExtraArgs:\n  - name: node-labels\n    \
             value: {}\n  - name: provider-id\n    value: {}\n",
            self.token.shown(),
            self.name,
            labels.join(","),
            self.provider_id()
        )
    }

    fn k3s(&self) -> String {
        let mut text = format!(
            "server: {}\ntoken: {}\nnode-name: {}\nnode-taint:\n- {STARTING}=:NoSchedule\nkubelet-arg:\n- provider-id={}\nnode-label:\n",
            self.server,
            self.token.pinned(&self.authority),
            self.name,
            self.provider_id()
        );
        for (key, value) in self.labels() {
            let _ = writeln!(text, "- {key}={value}");
        }
        text
    }
}

/// The text of [`Join::user_data`], for whoever checks it: it has the token in it.
pub fn rendered(join: &Join) -> String {
    match join.cloud {
        Kind::Paperspace => join.script(),
        _ => join.cloud_config(),
    }
}

fn unit(name: &str, text: String) -> File {
    file(&format!("/etc/systemd/system/{name}"), "0644", text)
}

/// A value for a shell.
pub(crate) fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// What the node of a rented machine tells of it.
#[derive(Clone, Copy, Debug)]
pub struct Rental<'a> {
    pub cloud: Kind,
    /// As the catalogue names it.
    pub gpu: &'a str,
    pub gpus: u32,
    pub region: &'a str,
    pub instance_type: &'a str,
    pub gpu_hour_price: &'a str,
    /// Namespace and name of the request that rented it.
    pub request: (&'a str, &'a str),
}

impl Rental<'_> {
    /// The labels of its node: the catalogue's model, so that it is known before any labeller runs.
    pub fn labels(&self) -> Vec<(String, String)> {
        let (namespace, name) = self.request;
        let gpus = self.gpus.to_string();
        let mut labels = vec![
            ("gpu.warp.dev/gpu-hour-price", self.gpu_hour_price),
            ("gpu.warp.dev/provider", self.cloud.as_str()),
            ("gpu.warp.dev/rented", "true"),
            ("gpu.warp.dev/request", name),
            ("gpu.warp.dev/request-namespace", namespace),
            ("node.kubernetes.io/instance-type", self.instance_type),
            ("topology.kubernetes.io/region", self.region),
        ];
        match gpu::named(self.gpu).first().map(|model| model.vendor) {
            Some(Vendor::Nvidia) => {
                labels.push(("nvidia.com/gpu.count", &gpus));
                labels.push(("nvidia.com/gpu.product", self.gpu));
            }
            Some(Vendor::Amd) => labels.push(("amd.com/gpu.product-name", self.gpu)),
            _ => {}
        }
        let labels = labels.into_iter();
        labels
            .map(|(key, value)| (key.to_owned(), label(value)))
            .collect()
    }
}

/// What a node says that its machine is called at its cloud.
pub fn provider_id(cloud: Kind, machine: &str) -> String {
    format!("warp://{}/{machine}", cloud.as_str())
}

/// A value a label may have: clouds write what they like.
fn label(value: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let value: String = value
        .chars()
        .map(|letter| if fits(letter) { letter } else { '-' })
        .take(63)
        .collect();
    let ends = |letter: char| !letter.is_ascii_alphanumeric();
    value.trim_matches(ends).to_owned()
}

/// Several texts for one machine, in the form cloud-init takes them apart again. What is a list in several of them is
/// appended, so that nobody's commands replace another's.
pub(crate) fn together(parts: &[String]) -> String {
    if let [only] = parts {
        return only.clone();
    }
    let boundary = "==warp==";
    let mut text =
        format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n");
    for part in parts {
        let kind = match part.lines().next() {
            Some(line) if line.starts_with("#!") => "text/x-shellscript",
            Some("#include") => "text/x-include-url",
            _ => "text/cloud-config",
        };
        // As it is where it can be: clouds limit how long it is all together.
        let plain = part.is_ascii() && !part.contains(boundary);
        let (encoding, body) = if plain {
            ("7bit", part.clone())
        } else {
            ("base64", STANDARD.encode(part))
        };
        let _ = write!(
            text,
            "\n--{boundary}\nContent-Type: {kind}; charset=\"utf-8\"\nContent-Transfer-Encoding: {encoding}\n\
             X-Merge-Type: list(append)+dict(no_replace,recurse_list)+str()\n\n{body}\n"
        );
    }
    let _ = writeln!(text, "\n--{boundary}--");
    text
}
