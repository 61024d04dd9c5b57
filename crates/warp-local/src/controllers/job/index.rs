//! Completion indexes: which index a pod has, and sets of indexes as a Job's status writes them (`1,3-5`).

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec};

pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const VARIABLE: &str = "JOB_COMPLETION_INDEX";

pub(super) type Indexes = BTreeSet<i32>;

pub(super) fn annotation(pod: &Pod, name: &str) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(name)?.parse().ok()
}

/// The index of a pod, if it is one the Job has.
pub(super) fn index_of(pod: &Pod, job: &Job) -> Option<i32> {
    let completions = job.spec.as_ref()?.completions?;
    annotation(pod, INDEX).filter(|index| (0..completions).contains(index))
}

/// Reads `1,3-5`; what cannot be read, or lies beyond `completions`, is left out.
pub(super) fn parse(text: Option<&str>, completions: i32) -> Indexes {
    let mut indexes = Indexes::new();
    for part in text
        .unwrap_or_default()
        .split(',')
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(
                (first.max(0)..=last.min(completions - 1)).filter(|index| *index < completions),
            );
        }
    }
    indexes
}

/// Writes a set as the API does: runs of three and more, and of two, as `first-last`.
pub(super) fn write(indexes: &Indexes) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let texts: Vec<_> = runs
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// Tells every container its index, unless the template already does.
pub(super) fn add_variable(spec: &mut PodSpec) {
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let env = container.env.get_or_insert_default();
        if env.iter().any(|variable| variable.name == VARIABLE) {
            continue;
        }
        let path = format!("metadata.labels['{INDEX}']");
        env.push(EnvVar {
            name: VARIABLE.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: path,
                }),
                ..EnvVarSource::default()
            }),
            value: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_written_as_the_api_writes_them() {
        assert_eq!(write(&[0, 1, 3, 4, 5, 9].into()), "0,1,3-5,9");
        assert_eq!(parse(Some("0,1,3-5,x,9-2"), 5), [0, 1, 3, 4].into());
    }

    proptest! {
        #[test]
        fn a_written_set_reads_back(indexes: std::collections::BTreeSet<u8>) {
            let indexes: Indexes = indexes.into_iter().map(i32::from).collect();
            prop_assert_eq!(parse(Some(&write(&indexes)), 256), indexes);
        }
    }
}
