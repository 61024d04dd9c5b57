//! When a pod last saved its work: the newest time of the files it names, told in an annotation of the pod. What that means
//! is whoever reads it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use warp_api::label;

use super::spec;
use crate::node::task::Frame;

/// Files and folders looked at, and how deep: a folder of a million files must not hold a node up.
const MOST: usize = 4096;
const DEEPEST: usize = 6;

/// Tells when a pod last saved its work, where it says where it does and that is another time than was told before.
pub(super) async fn tell(frame: &Frame, before: Option<Timestamp>) -> Option<Timestamp> {
    let meta = &frame.pod.metadata;
    let annotations = meta.annotations.as_ref()?;
    let path = annotations.get(label::CHECKPOINT_PATH)?;
    let places = spec::places(&frame.folder, &frame.pod, path);
    let newest = tokio::task::spawn_blocking(move || {
        let each = places.iter().filter_map(|place| newest(place));
        each.max()
    });
    let newest = Timestamp::try_from(newest.await.ok()??).ok()?;
    let newest = Timestamp::from_second(newest.as_second()).ok()?;
    if before == Some(newest) {
        return None;
    }
    let namespace = meta.namespace.as_deref().unwrap_or("default");
    let pods: Api<Pod> = Api::namespaced(frame.client.clone(), namespace);
    let patch = json!({"metadata": {
        "uid": frame.uid, "annotations": {label::CHECKPOINT_FILE_TIME: newest.to_string()},
    }});
    let name = meta.name.as_deref().unwrap_or_default();
    let told = pods
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match told {
        Ok(_) => Some(newest),
        Err(error) => {
            tracing::debug!(%error, pod = name, "not told for now when it last saved its work");
            None
        }
    }
}

/// The newest time of a file, or of the files below a folder. Links inside it are not followed.
fn newest(path: &Path) -> Option<SystemTime> {
    let found = std::fs::metadata(path).ok()?;
    if found.is_file() {
        return found.modified().ok();
    }
    let mut newest = None;
    let mut looked_at = 0;
    let mut open: Vec<(PathBuf, usize)> = vec![(path.to_owned(), 1)];
    while let Some((folder, depth)) = open.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > MOST {
                // Files beyond these are told of by the folders they were written into.
                let folders = open.into_iter().map(|(folder, _)| folder);
                let times = folders.chain([folder]).filter_map(|folder| {
                    let found = std::fs::metadata(folder).ok()?;
                    found.modified().ok()
                });
                return times.chain(newest).max();
            }
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if found.is_file() {
                newest = newest.max(found.modified().ok());
            } else if found.is_dir() && depth < DEEPEST {
                open.push((entry.path(), depth + 1));
            }
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn written(path: &Path, seconds: u64) {
        let file = std::fs::File::create(path).expect("a file");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).expect("its time");
    }

    fn seconds(path: &Path) -> Option<u64> {
        let since = newest(path)?.duration_since(SystemTime::UNIX_EPOCH);
        since.ok().map(|since| since.as_secs())
    }

    #[test]
    fn the_newest_file_of_a_folder_tells_and_folders_themselves_do_not() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(seconds(folder.path()), None, "nothing was saved yet");
        let step = folder.path().join("step-1");
        std::fs::create_dir(&step).expect("a folder");
        assert_eq!(seconds(folder.path()), None);
        written(&folder.path().join("old"), 1_000);
        written(&step.join("weights"), 2_000);
        assert_eq!(seconds(folder.path()), Some(2_000));
        assert_eq!(seconds(&folder.path().join("old")), Some(1_000));
        assert_eq!(seconds(&folder.path().join("none")), None);
    }
}
