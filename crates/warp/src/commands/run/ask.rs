//! What is to be run, from flags to a workload.

use anyhow::bail;
use jiff::Timestamp;
use serde_json::{Value, json};

#[derive(clap::Args, Debug, Default)]
pub(crate) struct Ask {
    /// Image to run; local:// runs the command on a process node as it is
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Name of the workload [default: the command's and the time]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// GPUs, all on one node; of a gang, for each member
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=16))]
    gpus: i64,
    /// Members of a gang: all start together or none does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=512))]
    replicas: Option<i64>,
    /// Keep the members of a gang within one host, rack, zone or region, or one value of a node label
    #[arg(long, value_name = "LEVEL", requires = "replicas")]
    topology: Option<String>,
    /// A GPU model that will do, such as H100; may be repeated
    #[arg(long, value_name = "MODEL")]
    gpu: Vec<String>,
    /// Whose GPUs: nvidia, amd, intel or habana
    #[arg(long, value_name = "VENDOR")]
    vendor: Option<String>,
    /// Least memory of one GPU, such as 40Gi
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<String>,
    /// A GPU that others use at the same time
    #[arg(long, conflicts_with_all = ["gpus", "rent"])]
    shared: bool,
    /// A part of one GPU, such as 0.25
    #[arg(long, value_name = "PART", conflicts_with_all = ["gpus", "partition", "rent"])]
    fraction: Option<String>,
    /// Parts of this profile instead of whole GPUs: a MIG profile such as 1g.10gb, CPX, tile
    #[arg(long, value_name = "PROFILE", conflicts_with = "rent")]
    partition: Option<String>,
    /// The least that keeps others off its memory: none, software or hardware
    #[arg(long, value_name = "LEVEL")]
    isolation: Option<String>,
    /// low, normal or high
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// End it after this long, such as 90m
    #[arg(long, value_name = "TIME")]
    max_runtime: Option<String>,
    /// Times it is tried again when it fails
    #[arg(long, value_name = "N")]
    retries: Option<i64>,
    /// An environment variable; may be repeated
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// CPU cores, such as 4 or 500m
    #[arg(long, value_name = "CORES")]
    cpu: Option<String>,
    /// Memory, such as 16Gi
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Rent a machine for it when it has waited for room too long
    #[arg(long, requires = "max_price")]
    rent: bool,
    /// Most dollars an hour for that machine, or for all machines of a gang
    #[arg(long, value_name = "DOLLARS", requires = "rent")]
    max_price: Option<String>,
    /// Most dollars for all machines rented for it
    #[arg(long, value_name = "DOLLARS", requires = "rent")]
    max_total_price: Option<String>,
    /// How long it waits before a machine is rented, such as 30m; 0s rents at once
    #[arg(long, value_name = "TIME", requires = "rent")]
    rent_after: Option<String>,
    /// How long all machines of a gang may take to come, such as 20m; then none is kept
    #[arg(long, value_name = "TIME", requires = "rent")]
    rent_within: Option<String>,
    /// Rent a machine that the cloud may take back
    #[arg(long, requires = "rent")]
    spot: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ask {
    /// The workload these flags describe.
    pub(super) fn object(&self) -> anyhow::Result<Value> {
        let Some(image) = &self.image else {
            bail!("say what to run: --image IMAGE -- COMMAND, or a manifest with -f");
        };
        let name = self.name.clone().unwrap_or_else(|| self.made_up(image));
        let mut spec = json!({
            "modelName": name,
            "gpuCount": self.gpus,
            "image": image,
        });
        if !self.command.is_empty() {
            spec["command"] = json!(self.command);
        }
        if let Some(replicas) = self.replicas {
            spec["replicas"] = json!(replicas);
        }
        if let Some(level) = &self.topology {
            spec["topology"] = json!({"level": level});
        }
        let mut gpu = json!({});
        if !self.gpu.is_empty() {
            gpu["models"] = json!(self.gpu);
        }
        if self.shared {
            gpu["sharing"] = json!("shared");
        }
        for (key, value) in [
            ("vendor", &self.vendor),
            ("minMemory", &self.gpu_memory),
            ("fraction", &self.fraction),
            ("partition", &self.partition),
            ("isolation", &self.isolation),
        ] {
            if let Some(value) = value {
                gpu[key] = json!(value);
            }
        }
        if gpu != json!({}) {
            spec["gpu"] = gpu;
        }
        for (key, value) in [
            ("priority", &self.priority),
            ("maxRuntime", &self.max_runtime),
        ] {
            if let Some(value) = value {
                spec[key] = json!(value);
            }
        }
        if let Some(retries) = self.retries {
            spec["retryPolicy"] = json!({"maxRetries": retries});
        }
        if let Some(rent) = self.renting() {
            spec["rent"] = rent;
        }
        let mut env = Vec::new();
        for pair in &self.env {
            match pair.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    env.push(json!({"name": name, "value": value}));
                }
                _ => bail!("'{pair}' is not NAME=VALUE"),
            }
        }
        if !env.is_empty() {
            spec["env"] = json!(env);
        }
        for (key, value) in [("cpu", &self.cpu), ("memory", &self.memory)] {
            if let Some(value) = value {
                spec["resources"]["requests"][key] = json!(value);
            }
        }
        Ok(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": name}, "spec": spec,
        }))
    }

    /// What may be rented for it.
    fn renting(&self) -> Option<Value> {
        if !self.rent {
            return None;
        }
        let mut rent = json!({});
        for (key, value) in [
            ("maxPrice", &self.max_price),
            ("maxTotalPrice", &self.max_total_price),
            ("after", &self.rent_after),
            ("within", &self.rent_within),
        ] {
            if let Some(value) = value {
                rent[key] = json!(value);
            }
        }
        if self.spot {
            rent["spot"] = json!(true);
        }
        Some(rent)
    }

    /// A name nobody has used: what is run, and when.
    fn made_up(&self, image: &str) -> String {
        let word = self.command.first().map_or(image, String::as_str);
        let word = word.rsplit('/').next().unwrap_or(word);
        let word = word.split([':', '@']).next().unwrap_or(word);
        let kept: String = word
            .to_lowercase()
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter
                } else {
                    '-'
                }
            })
            .take(30)
            .collect();
        let kept = kept.trim_matches('-');
        let kept = if kept.is_empty() { "run" } else { kept };
        format!("{kept}-{}", Timestamp::now().strftime("%m%d-%H%M%S"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_the_fields_they_are_named_after() {
        let ask = Ask {
            image: Some("registry/train:1".to_owned()),
            name: Some("train".to_owned()),
            gpus: 4,
            replicas: Some(2),
            topology: Some("rack".to_owned()),
            gpu: vec!["H100".to_owned()],
            env: vec!["A=b=c".to_owned()],
            cpu: Some("4".to_owned()),
            retries: Some(0),
            rent: true,
            max_price: Some("3.50".to_owned()),
            rent_after: Some("5m".to_owned()),
            command: vec!["python".to_owned(), "-u".to_owned()],
            ..Ask::default()
        };
        let object = ask.object().unwrap();
        assert_eq!(
            object["spec"],
            json!({"modelName": "train", "gpuCount": 4, "replicas": 2, "topology": {"level": "rack"}, "image": "registry/train:1", "command": ["python", "-u"],
                "gpu": {"models": ["H100"]}, "retryPolicy": {"maxRetries": 0}, "rent": {"maxPrice": "3.50", "after": "5m"}, "env": [{"name": "A", "value": "b=c"}],
                "resources": {"requests": {"cpu": "4"}}})
        );
    }

    #[test]
    fn shares_and_parts_become_fields_of_gpu() {
        let share = Ask {
            image: Some("i".to_owned()),
            name: Some("n".to_owned()),
            gpus: 1,
            shared: true,
            fraction: Some("0.25".to_owned()),
            isolation: Some("none".to_owned()),
            ..Ask::default()
        };
        assert_eq!(
            share.object().unwrap()["spec"]["gpu"],
            json!({"sharing": "shared", "fraction": "0.25", "isolation": "none"})
        );
        let part = Ask {
            shared: false,
            fraction: None,
            isolation: None,
            partition: Some("1g.10gb".to_owned()),
            gpus: 2,
            ..share
        };
        assert_eq!(
            part.object().unwrap()["spec"]["gpu"],
            json!({"partition": "1g.10gb"})
        );
    }

    #[test]
    fn a_name_that_is_made_up_is_one_kubernetes_takes() {
        for (image, command) in [
            ("a/b/Train_It:v1", ""),
            ("local://", "/usr/bin/env"),
            ("::", ""),
        ] {
            let ask = Ask {
                image: Some(image.to_owned()),
                command: Some(command.to_owned())
                    .filter(|word| !word.is_empty())
                    .into_iter()
                    .collect(),
                ..Ask::default()
            };
            let name = ask.made_up(image);
            assert!(
                name.starts_with(|letter: char| letter.is_ascii_lowercase()),
                "{name}"
            );
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{name}"
            );
        }
    }

    #[test]
    fn a_variable_without_a_value_is_refused_by_name() {
        let ask = Ask {
            image: Some("i".to_owned()),
            env: vec!["TOKEN".to_owned()],
            ..Ask::default()
        };
        let told = ask.object().unwrap_err().to_string();
        assert_eq!(told, "'TOKEN' is not NAME=VALUE");
    }
}
