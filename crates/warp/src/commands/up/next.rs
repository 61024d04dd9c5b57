//! What to type next: commands that work as they are printed, in this shell and this directory.

use std::path::{Path, PathBuf};

use super::instance::{Instance, Kind, Note};
use crate::{cluster, output};

const EXAMPLE: &str = "deploy/examples/train.yaml";

pub(super) fn say(instance: &Instance, note: &Note) {
    let program = std::env::current_exe().ok();
    let mut lines = Vec::new();
    if let Some(program) = program
        .as_deref()
        .filter(|program| !is_found(program, "warp"))
    {
        lines.push(format!("alias warp={}", word(program)));
    }
    lines.push(format!(
        "export KUBECONFIG={}",
        word(&instance.kubeconfig())
    ));
    let tool = if found("kubectl").is_some() {
        "kubectl"
    } else {
        "warp"
    };
    let other = if tool == "kubectl" {
        "                     # or: warp get nodes"
    } else {
        ""
    };
    if note.kind != Kind::None {
        lines.push(format!("{tool} get nodes{other}"));
        lines.extend(example(tool, note.kind, program.as_deref()));
        if note.kind == Kind::Simulated {
            lines.push(
                "warp offers H100 · warp rent H100 --max-price 3.50   # in fake money".to_owned(),
            );
        }
    }
    let data = if cluster::data_directory().as_ref() == Some(&instance.folder) {
        String::new()
    } else {
        format!(" --data {}", word(&instance.folder))
    };
    lines.push(format!(
        "warp status{data} · warp logs NAME -f · warp down{data}"
    ));
    let mut text = String::new();
    for line in lines.iter().flat_map(|line| line.lines()) {
        text.extend(["\n  ", line]);
    }
    output::note(&format!("{text}\n"));
}

/// Something to run that these nodes can run.
fn example(tool: &str, kind: Kind, program: Option<&Path>) -> Vec<String> {
    let image = match kind {
        Kind::None => return Vec::new(),
        Kind::Process => "local://",
        Kind::Docker => "busybox",
        Kind::Simulated => {
            let apply = match example_file(program) {
                Some(file) => format!("{tool} apply -f {}", word(&file)),
                None => format!(
                    "echo '{{\"apiVersion\": \"gpu.warp.dev/v1alpha1\", \"kind\": \"GPUWorkload\", \"metadata\": {{\"name\": \"train\"}}, \"spec\": {{\"modelName\": \"hello\", \"gpuCount\": 2, \"image\": \"train\", \"command\": [\"sleep\", \"60\"]}}}}' | {tool} apply -f -"
                ),
            };
            return vec![format!("{apply} && {tool} get gpuw -w")];
        }
    };
    vec![
        format!(
            "echo '{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"hello\"}}, \"spec\": {{\"restartPolicy\": \"Never\", \"containers\": [{{\"name\": \"main\", \"image\": \"{image}\", \"command\": [\"sh\", \"-c\", \"echo hello; sleep 60\"]}}]}}}}' | {tool} apply -f -"
        ),
        "warp logs hello -f".to_owned(),
    ]
}

/// The example of the clone we stand in, or of the one this program was built in.
fn example_file(program: Option<&Path>) -> Option<PathBuf> {
    let here = PathBuf::from(EXAMPLE);
    if here.is_file() {
        return Some(here);
    }
    program?
        .ancestors()
        .map(|folder| folder.join(EXAMPLE))
        .find(|file| file.is_file())
}

/// Where a shell finds a program.
fn found(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn is_found(program: &Path, name: &str) -> bool {
    let same = |file: PathBuf| Some(file.canonicalize().ok()? == program.canonicalize().ok()?);
    found(name).and_then(same).unwrap_or(false)
}

/// A path as a shell takes it.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if plain {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
