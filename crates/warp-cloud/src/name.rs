//! The names of rented machines: ours to choose, the same for the same attempt for ever, and marked so that a machine
//! of this cluster is told from everybody else's.

/// Letters of the cluster's id in a name.
const CLUSTER: usize = 8;

/// Whose machines: the mark every machine of one cluster carries in its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// The mark of the cluster with this id (the uid of its `kube-system` namespace).
    pub fn of_cluster(id: &str) -> Self {
        let short: String = id.chars().take(CLUSTER).collect();
        Self(format!("warp-{short}-"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a machine of this name is of this cluster: the mark, the uid of a request, the number of an attempt.
    pub fn is_on(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.0);
        let parts = rest.and_then(|rest| rest.rsplit_once('-'));
        parts.is_some_and(|(uid, attempt)| {
            !uid.is_empty() && attempt.parse::<u32>().is_ok_and(|number| number > 0)
        })
    }
}

/// The name of the machine of one attempt of one request: at most 63 characters, as a node's label wants it.
pub fn machine_name(mark: &Mark, request_uid: &str, attempt: u32) -> String {
    format!("{}{request_uid}-{attempt}", mark.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7a1c7e-8d0e-4f43-9d0f-0a4b6f9f2d11";

    #[test]
    fn names_are_the_same_for_the_same_attempt_and_differ_otherwise() {
        let mark = Mark::of_cluster("5f0c2a9e-1111-4222-8333-444455556666");
        let name = machine_name(&mark, UID, 12);
        assert_eq!(name, machine_name(&mark, UID, 12));
        assert_ne!(name, machine_name(&mark, UID, 1));
        assert!(mark.is_on(&name) && name.len() <= 63, "{name}");
    }

    #[test]
    fn another_cluster_and_another_purpose_are_not_ours() {
        let (mark, other) = (Mark::of_cluster("aaaaaaaa"), Mark::of_cluster("bbbbbbbb"));
        let name = machine_name(&mark, UID, 1);
        assert!(!other.is_on(&name));
        assert!(!mark.is_on("warp-aaaaaaaa-"));
        assert!(!mark.is_on(&format!("{name}-copy")));
        assert!(!mark.is_on("warp-aaaaaaaa--1"));
        assert!(!mark.is_on("somebody-elses"));
    }
}
