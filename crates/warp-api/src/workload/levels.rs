//! Topology levels: the words for how close together the members of a gang are, and the node labels they stand for. An
//! administrator names a cluster's own.

use std::fmt;
use std::str::FromStr;

use super::{Closeness, Topology};

/// Levels that can be named: more would be a mistake.
const MOST: usize = 8;
const HOST: &str = "host";
const HOSTNAME: &str = "kubernetes.io/hostname";
const PREFIX: &str = "level ";

/// The levels of a cluster, the widest first. `host` is always one, the narrowest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyLevels(Vec<Named>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    label: String,
}

/// A level as the scheduler reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyLevel {
    /// What tells domains apart: see [`TopologyLevels::domains`], or the label itself where it is no level.
    pub key: String,
    /// The node label behind it.
    pub label: String,
    /// The word for one domain, in messages.
    pub name: String,
    pub required: bool,
    /// Keys of the levels around it, the narrowest first.
    pub wider: Vec<String>,
}

impl Default for TopologyLevels {
    fn default() -> Self {
        let named = |name: &str, label: &str| Named {
            name: name.to_owned(),
            label: label.to_owned(),
        };
        Self(vec![
            named("region", "topology.kubernetes.io/region"),
            named("zone", "topology.kubernetes.io/zone"),
            named("rack", "topology.kubernetes.io/rack"),
            named(HOST, HOSTNAME),
        ])
    }
}

impl TopologyLevels {
    /// The level a gang asks for: one of these by its name or its label, else the key of any node label.
    pub fn level(&self, asked: &Topology) -> TopologyLevel {
        let known = |one: &Named| one.name == asked.level || one.label == asked.level;
        let at = self.0.iter().position(known);
        let around = self.0[..at.unwrap_or(0)].iter().rev();
        TopologyLevel {
            key: at.map_or_else(|| asked.level.clone(), |at| key(&self.0[at].name)),
            label: at.map_or_else(|| asked.level.clone(), |at| self.0[at].label.clone()),
            name: asked.level.clone(),
            required: asked.mode == Closeness::Required,
            wider: around.map(|one| key(&one.name)).collect(),
        }
    }

    /// The domain of each level a node is in, by the level's key. A domain is named with those around it: racks of one
    /// name in two zones are two. A node without a level's label is in no domain of it.
    pub fn domains<'a>(
        &'a self,
        label: impl Fn(&str) -> Option<&'a str> + 'a,
    ) -> impl Iterator<Item = (String, String)> + 'a {
        let mut path = String::new();
        self.0.iter().filter_map(move |one| {
            let value = label(&one.label);
            path.push('/');
            path.push_str(value.unwrap_or_default());
            value.map(|_| (key(&one.name), path.clone()))
        })
    }

    /// Whether this is what a level's domains are entered under, and no label of a node.
    pub fn is_key(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// The node label of the level of this name.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|one| one.name == name);
        found.map(|one| one.label.as_str())
    }
}

/// What a level's domains are entered under beside a node's labels. No label can be called so, and no pod can ask for it.
fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

impl fmt::Display for TopologyLevels {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self
            .0
            .iter()
            .map(|one| format!("{} ({})", one.name, one.label));
        out.write_str(&named.collect::<Vec<_>>().join(", "))
    }
}

/// Why levels cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLevels(String);

impl fmt::Display for BadLevels {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}; pass name=node-label, the widest first, such as zone=topology.kubernetes.io/zone,rack=example.com/rack",
            self.0
        )
    }
}

impl std::error::Error for BadLevels {}

impl FromStr for TopologyLevels {
    type Err = BadLevels;

    fn from_str(text: &str) -> Result<Self, BadLevels> {
        let mut levels: Vec<Named> = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let Some((name, label)) = entry.split_once('=') else {
                return Err(BadLevels(format!("'{entry}' says no label")));
            };
            let (name, label) = (name.trim(), label.trim());
            if !is_word(name) {
                return Err(BadLevels(format!(
                    "'{name}' is no name of a level: lower-case letters, digits and '-' are"
                )));
            }
            if !is_label(label) {
                return Err(BadLevels(format!("'{label}' is no key of a node label")));
            }
            let taken = levels
                .iter()
                .find(|one| one.name == name || one.label == label);
            if let Some(taken) = taken {
                return Err(BadLevels(format!(
                    "{name}={label} and {}={} are one level twice",
                    taken.name, taken.label
                )));
            }
            if levels.last().is_some_and(|last| last.name == HOST) {
                return Err(BadLevels(format!(
                    "'{name}' is inside of host: host comes last"
                )));
            }
            levels.push(Named {
                name: name.to_owned(),
                label: label.to_owned(),
            });
        }
        if levels.len() > MOST {
            return Err(BadLevels(format!("more than {MOST} levels")));
        }
        if levels
            .iter()
            .all(|one| one.name != HOST && one.label != HOSTNAME)
        {
            levels.push(Named {
                name: HOST.to_owned(),
                label: HOSTNAME.to_owned(),
            });
        }
        Ok(Self(levels))
    }
}

/// Lower-case letters, digits and dashes between them.
fn is_word(text: &str) -> bool {
    let inside = |one: u8| one.is_ascii_lowercase() || one.is_ascii_digit() || one == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// An optional DNS name and a slash, and a name.
fn is_label(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let ends = |text: &str| {
        let end = |one: Option<char>| one.is_some_and(|one| one.is_ascii_alphanumeric());
        end(text.chars().next()) && end(text.chars().next_back())
    };
    let prefix_right = prefix
        .is_none_or(|prefix| prefix.len() <= 253 && ends(prefix) && prefix.split('.').all(is_word));
    let inside = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    prefix_right && name.len() <= 63 && ends(name) && name.chars().all(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(level: &str) -> Topology {
        Topology {
            level: level.to_owned(),
            mode: Closeness::Required,
        }
    }

    fn read(text: &str) -> TopologyLevels {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_is_known_by_its_name_and_its_label_with_those_around_it() {
        let levels =
            read("zone=topology.kubernetes.io/zone, block=example.com/block,rack=example.com/rack");
        for text in ["rack", "example.com/rack"] {
            let level = levels.level(&asked(text));
            assert_eq!(level.key, "level rack");
            assert_eq!(level.label, "example.com/rack");
            assert_eq!(level.wider, ["level block", "level zone"]);
            assert_eq!(level.name, text);
        }
        let other = levels.level(&asked("example.com/leaf"));
        assert_eq!(
            (other.key.as_str(), other.wider.len()),
            ("example.com/leaf", 0)
        );
        let host = levels.level(&asked("host"));
        assert_eq!((host.label.as_str(), host.wider.len()), (HOSTNAME, 3));
        assert_eq!(
            levels.to_string(),
            "zone (topology.kubernetes.io/zone), block (example.com/block), rack (example.com/rack), host (kubernetes.io/hostname)"
        );
    }

    #[test]
    fn racks_of_one_name_in_two_zones_are_two() {
        let levels = read("zone=z,rack=r");
        let domains = |zone: Option<&'static str>, rack: Option<&'static str>| -> Vec<_> {
            let label = move |key: &str| match key {
                "z" => zone,
                "r" => rack,
                _ => None,
            };
            levels.domains(label).map(|(_, domain)| domain).collect()
        };
        assert_eq!(domains(Some("a"), Some("1")), ["/a", "/a/1"]);
        assert_eq!(domains(Some("b"), Some("1")), ["/b", "/b/1"]);
        assert_eq!(domains(None, Some("1")), ["//1"]);
        assert_eq!(domains(Some("a"), None), ["/a"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("", "'' says no label"),
            ("rack", "'rack' says no label"),
            ("Rack=r", "'Rack' is no name of a level"),
            ("rack=/r", "'/r' is no key of a node label"),
            ("rack=a b", "is no key of a node label"),
            ("rack=r,rack=s", "are one level twice"),
            ("rack=r,leaf=r", "are one level twice"),
            ("host=kubernetes.io/hostname,rack=r", "host comes last"),
            ("a=a,b=b,c=c,d=d,e=e,f=f,g=g,h=h,i=i", "more than 8 levels"),
        ] {
            let problem = text.parse::<TopologyLevels>().unwrap_err().to_string();
            assert!(problem.contains(says), "{text}: {problem}");
            assert!(
                problem.contains("pass name=node-label, the widest first"),
                "{problem}"
            );
        }
    }
}
