//! Random fleets and pods, as Kubernetes objects, that meet every filter's and every score's corners.
//!
//! Owns: the shapes that are drawn. Values come from small sets so that selectors match, ports
//! clash and nodes fill up often. Must not decide what fits or what is best.

use serde_json::{Map, Value, json};
use warp_core::random::Random;

const ZONES: [&str; 3] = ["a", "b", "c"];
const APPS: [&str; 3] = ["web", "db", "train"];
const TAINTS: [(&str, &str); 3] = [("team", "research"), ("team", "prod"), ("spot", "")];
const EFFECTS: [&str; 3] = ["NoSchedule", "NoExecute", "PreferNoSchedule"];
const WEIGHTS: [u32; 4] = [1, 10, 50, 100];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Draws objects from a seed.
pub(super) struct Generator {
    random: Random,
    number: usize,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            number: 0,
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    fn next_number(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    pub(super) fn node(&mut self) -> Value {
        let name = format!("node-{}", self.next_number());
        let mut labels = json!({
            "kubernetes.io/hostname": name,
            "generation": self.random.below(6).to_string(),
        });
        if !self.chance(6) {
            let zone = self.pick(&ZONES);
            labels["zone"] = json!(zone);
            // The label that a group is spread by when its pods say nothing of it.
            if !self.chance(8) {
                labels["topology.kubernetes.io/zone"] = json!(zone);
            }
        }
        if self.chance(2) {
            labels["disk"] = json!(self.pick(&["ssd", "hdd"]));
        }
        let mut amount = json!({
            "cpu": self.pick(&["2", "4", "8", "3500m"]),
            "memory": self.pick(&["2Gi", "8Gi", "6000M"]),
            "pods": self.pick(&["2", "4", "110"]),
        });
        let gpus = self.pick(&[0, 0, 2, 4, 8]);
        if gpus > 0 {
            amount["nvidia.com/gpu"] = json!(gpus.to_string());
            labels["nvidia.com/gpu.present"] = json!("true");
            labels["nvidia.com/gpu.product"] = json!("NVIDIA-H100-80GB-HBM3");
            labels["nvidia.com/gpu.memory"] = json!("81559");
        }
        let mut taints = Vec::new();
        for (key, value) in TAINTS {
            if self.chance(4) {
                taints.push(json!({"key": key, "value": value, "effect": self.pick(&EFFECTS)}));
            }
        }
        // A key and effect may appear once.
        taints.dedup_by(|a, b| a["key"] == b["key"] && a["effect"] == b["effect"]);
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": self.chance(10)},
            "status": {
                "capacity": amount, "allocatable": amount,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }

    fn resources(&mut self) -> Value {
        let mut requests = Map::new();
        if self.chance(2) {
            requests.insert("cpu".into(), json!(self.pick(&["250m", "1", "2", "3"])));
        }
        if self.chance(3) {
            requests.insert("memory".into(), json!(self.pick(&["512Mi", "1Gi", "3G"])));
        }
        let mut limits = Map::new();
        if self.chance(3) {
            limits.insert("nvidia.com/gpu".into(), json!(self.pick(&["1", "2", "4"])));
        }
        json!({"requests": requests, "limits": limits})
    }

    fn container(&mut self, name: &str) -> Value {
        let mut container = json!({
            "name": name, "image": "image:1", "resources": self.resources(),
        });
        // A pod may not name a port twice, so each container has its own.
        let own = match name {
            "main" => [8080, 9090],
            "sidecar" => [7070, 7071],
            _ => [6060, 6061],
        };
        if matches!(name, "main" | "sidecar" | "first") && self.chance(5) {
            container["ports"] = json!([{
                "containerPort": 80,
                "hostPort": self.pick(&own),
                "protocol": self.pick(&["TCP", "UDP"]),
                "hostIP": self.pick(&["", "10.0.0.1", "0.0.0.0"]),
            }]);
        }
        container
    }

    /// Containers, init containers and sidecars in any order.
    fn containers(&mut self) -> Value {
        let mut spec = json!({"containers": [self.container("main")]});
        if self.chance(4) {
            let second = self.container("second");
            spec["containers"].as_array_mut().unwrap().push(second);
        }
        if self.chance(4) {
            let mut early = Vec::new();
            for name in ["first", "sidecar", "last"] {
                if self.chance(2) {
                    let mut container = self.container(name);
                    if name == "sidecar" {
                        container["restartPolicy"] = json!("Always");
                    }
                    early.push(container);
                }
            }
            spec["initContainers"] = json!(early);
        }
        spec
    }

    fn labels(&mut self) -> Value {
        let mut labels = json!({"app": self.pick(&APPS)});
        if self.chance(2) {
            labels["version"] = json!(self.pick(&["v1", "v2"]));
        }
        labels
    }

    /// A pod that is on `node` already.
    pub(super) fn bound_pod(&mut self, node: &str) -> Value {
        let mut spec = self.containers();
        spec["nodeName"] = json!(node);
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        let mut affinity = Map::new();
        for kind in ["podAffinity", "podAntiAffinity"] {
            let mut terms = Map::new();
            if self.chance(9) {
                terms.insert(REQUIRED.into(), json!([self.pod_term()]));
            }
            if self.chance(3) {
                terms.insert(PREFERRED.into(), self.weighted_pod_terms());
            }
            affinity.insert(kind.into(), Value::Object(terms));
        }
        spec["affinity"] = Value::Object(affinity);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("bound-{}", self.next_number()), "labels": self.labels()},
            "spec": spec,
        })
    }

    /// A pod to ask about.
    pub(super) fn question(&mut self, nodes: &[String]) -> Value {
        let mut spec = self.containers();
        // Half of them have little against any node, so that the best of many is asked for.
        let picky = self.chance(2);
        if picky && self.chance(4) {
            spec["nodeSelector"] =
                json!({self.pick(&["zone", "disk"]): self.pick(&["a", "b", "ssd"])});
        }
        let mut affinity = Map::new();
        let mut node = Map::new();
        if picky && self.chance(3) {
            let terms: Vec<Value> = (0..=self.random.below(2))
                .map(|_| self.node_term(nodes))
                .collect();
            node.insert(REQUIRED.into(), json!({"nodeSelectorTerms": terms}));
        }
        if self.chance(3) {
            let terms: Vec<Value> = (0..=self.random.below(2))
                .map(
                    |_| json!({"weight": self.pick(&WEIGHTS), "preference": self.node_term(nodes)}),
                )
                .collect();
            node.insert(PREFERRED.into(), json!(terms));
        }
        affinity.insert("nodeAffinity".into(), Value::Object(node));
        for (kind, one_in) in [("podAffinity", 5), ("podAntiAffinity", 4)] {
            let mut pods = Map::new();
            if picky && self.chance(one_in) {
                let terms: Vec<Value> = (0..=self.random.below(2))
                    .map(|_| self.pod_term())
                    .collect();
                pods.insert(REQUIRED.into(), json!(terms));
            }
            if self.chance(4) {
                pods.insert(PREFERRED.into(), self.weighted_pod_terms());
            }
            affinity.insert(kind.into(), Value::Object(pods));
        }
        spec["affinity"] = Value::Object(affinity);
        if self.chance(2) {
            let some: Vec<Value> = (0..=self.random.below(2))
                .map(|_| self.toleration())
                .collect();
            spec["tolerations"] = json!(some);
        }
        if !picky {
            let hard = ["NoSchedule", "NoExecute"];
            let hard = hard.map(|effect| json!({"operator": "Exists", "effect": effect}));
            let mut all = hard.to_vec();
            all.extend(spec["tolerations"].as_array().cloned().unwrap_or_default());
            spec["tolerations"] = json!(all);
        }
        let mut spreads = Vec::new();
        if picky && self.chance(3) {
            spreads.push(self.spread("DoNotSchedule"));
        }
        if self.chance(3) {
            for _ in 0..=self.random.below(2) {
                spreads.push(self.spread("ScheduleAnyway"));
            }
            // A key may appear once for each way.
            spreads.dedup_by(|a, b| {
                a["topologyKey"] == b["topologyKey"]
                    && a["whenUnsatisfiable"] == b["whenUnsatisfiable"]
            });
        }
        spec["topologySpreadConstraints"] = json!(spreads);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("question-{}", self.next_number()), "labels": self.labels()},
            "spec": spec,
        })
    }

    fn node_term(&mut self, nodes: &[String]) -> Value {
        let mut expressions = Vec::new();
        for _ in 0..=self.random.below(2) {
            expressions.push(match self.random.below(6) {
                0 => json!({"key": "zone", "operator": "In", "values": [self.pick(&ZONES), self.pick(&ZONES)]}),
                1 => json!({"key": "zone", "operator": "NotIn", "values": [self.pick(&ZONES)]}),
                2 => json!({"key": "disk", "operator": "Exists"}),
                3 => json!({"key": "disk", "operator": "DoesNotExist"}),
                4 => json!({"key": "generation", "operator": "Gt", "values": [self.pick(&["1", "2", "3"])]}),
                _ => json!({"key": "generation", "operator": "Lt", "values": [self.pick(&["2", "3", "4"])]}),
            });
        }
        let mut term = json!({"matchExpressions": expressions});
        if self.chance(4) {
            let name = &nodes[self.random.below(nodes.len())];
            let operator = self.pick(&["In", "NotIn"]);
            term["matchFields"] =
                json!([{"key": "metadata.name", "operator": operator, "values": [name]}]);
        }
        term
    }

    fn selector(&mut self) -> Value {
        match self.random.below(5) {
            0 => json!({}),
            1 => json!({"matchExpressions": [
                {"key": "app", "operator": "NotIn", "values": [self.pick(&APPS)]},
            ]}),
            2 => json!({"matchExpressions": [{"key": "version", "operator": "Exists"}]}),
            3 => json!({"matchExpressions": [{"key": "version", "operator": "DoesNotExist"}]}),
            _ => json!({"matchLabels": {"app": self.pick(&APPS)}}),
        }
    }

    fn topology(&mut self) -> &'static str {
        self.pick(&["zone", "kubernetes.io/hostname", "disk"])
    }

    /// What is asked of a namespace's labels: the oracle's own has `kubernetes.io/metadata.name`.
    fn namespace_selector(&mut self) -> Value {
        let name = "kubernetes.io/metadata.name";
        match self.random.below(3) {
            0 => json!({"matchLabels": {name: "asked"}}),
            1 => {
                json!({"matchExpressions": [{"key": name, "operator": "NotIn", "values": ["asked"]}]})
            }
            _ => json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
        }
    }

    fn pod_term(&mut self) -> Value {
        let mut term = json!({"labelSelector": self.selector(), "topologyKey": self.topology()});
        match self.random.below(6) {
            0 => term["namespaceSelector"] = json!({}),
            1 => term["namespaces"] = json!(["elsewhere"]),
            3 => term["namespaceSelector"] = self.namespace_selector(),
            2 => term["matchLabelKeys"] = json!(["version"]),
            _ => {}
        }
        // A key may not be in both.
        if term.get("matchLabelKeys").is_some() {
            term["labelSelector"] = json!({"matchLabels": {"app": self.pick(&APPS)}});
        }
        term
    }

    fn weighted_pod_terms(&mut self) -> Value {
        let terms: Vec<Value> = (0..=self.random.below(2))
            .map(|_| json!({"weight": self.pick(&WEIGHTS), "podAffinityTerm": self.pod_term()}))
            .collect();
        json!(terms)
    }

    fn toleration(&mut self) -> Value {
        let (key, value) = self.pick(&TAINTS);
        match self.random.below(4) {
            0 => json!({"operator": "Exists"}),
            1 => json!({"key": key, "operator": "Exists", "effect": self.pick(&EFFECTS)}),
            2 => json!({"key": key, "operator": "Exists"}),
            _ => {
                json!({"key": key, "operator": "Equal", "value": value, "effect": self.pick(&EFFECTS)})
            }
        }
    }

    fn spread(&mut self, when_unsatisfiable: &str) -> Value {
        let mut spread = json!({
            "maxSkew": 1 + self.random.below(2),
            "topologyKey": self.topology(),
            "whenUnsatisfiable": when_unsatisfiable,
            "labelSelector": self.selector(),
        });
        if when_unsatisfiable == "DoNotSchedule" && self.chance(3) {
            spread["minDomains"] = json!(1 + self.random.below(4));
        }
        if self.chance(3) {
            spread["nodeAffinityPolicy"] = json!(self.pick(&["Honor", "Ignore"]));
        }
        if self.chance(3) {
            spread["nodeTaintsPolicy"] = json!(self.pick(&["Honor", "Ignore"]));
        }
        spread
    }
}
