//! `warp model plan`, on folders and on a hub made for it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::up::Up;

const CONFIG: &str = r#"{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "max_position_embeddings": 131072, "limit": Infinity}"#;
const GIB: u64 = 1 << 30;

fn plan(arguments: &[&str], hub: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
    command
        .args(["model", "plan"])
        .args(arguments)
        .stdin(Stdio::null());
    command.env_remove("HF_TOKEN").env_remove("HF_ENDPOINT");
    // No cluster of this machine is asked.
    command.env("KUBECONFIG", "/nonexistent");
    if let Some(hub) = hub {
        command
            .env("HF_ENDPOINT", hub)
            .env("HF_TOKEN", "hf_planted");
    }
    command.output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of safetensors of this many bytes: a true header, then a hole.
fn weights(file: &Path, bytes: u64) {
    let header = |end: u64| {
        let mut text =
            json!({"w": {"dtype": "U8", "shape": [end], "data_offsets": [0, end]}}).to_string();
        text.extend(std::iter::repeat_n(' ', 200 - text.len()));
        text
    };
    let text = header(bytes - 208);
    let mut out = std::fs::File::create(file).unwrap();
    out.write_all(&200_u64.to_le_bytes()).unwrap();
    out.write_all(text.as_bytes()).unwrap();
    out.set_len(bytes).unwrap();
}

/// A folder as a model is kept in; the weights are holes of the right size.
fn folder(at: &Path, config: &str, weights_gib: u64) {
    std::fs::write(at.join("config.json"), config).unwrap();
    weights(&at.join("model.safetensors"), weights_gib * GIB);
}

#[test]
fn a_folder_is_planned_for_every_gpu_and_for_one() {
    let at = tempfile::tempdir().unwrap();
    folder(at.path(), CONFIG, 15);
    let name = at.path().display().to_string();
    let output = plan(&[&name, "-o", "json"], None);
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["weightsBytes"], json!(15 * GIB));
    assert_eq!(answer["kvBytesPerToken"], 131_072);
    let layouts = answer["layouts"].as_array().unwrap();
    let on = |gpu: &str| {
        layouts
            .iter()
            .find(|layout| layout["gpu"] == gpu)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&on("T4")["count"], &on("T4")["fits"]),
        (&json!(3), &json!(true))
    );
    assert_eq!(
        (&on("MI300X")["count"], &on("MI300X")["tensorParallel"]),
        (&json!(1), &json!(1))
    );
    assert!(on("MI100")["reason"].as_str().unwrap().contains("gfx908"));

    let output = plan(
        &[
            &name,
            "--gpu",
            "mi300x",
            "--context",
            "32k",
            "--concurrency",
            "64",
        ],
        None,
    );
    assert!(output.status.success(), "{}", said(&output));
    let text = printed(&output);
    assert!(
        text.contains("MI300X")
            && text.contains("do not fit:")
            && text.contains("fits with --concurrency"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_planned_is_told_with_its_name() {
    let at = tempfile::tempdir().unwrap();
    let name = at.path().display().to_string();
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = plan(arguments, None);
        assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
        for word in words {
            assert!(said(&output).contains(word), "{word}: {}", said(&output));
        }
    };
    refused(&[&name], &["config.json", &name]);
    std::fs::write(at.path().join("config.json"), "{").unwrap();
    refused(&[&name], &["config.json", &name]);
    std::fs::write(at.path().join("config.json"), "{}").unwrap();
    refused(&[&name], &["num_hidden_layers"]);
    std::fs::write(at.path().join("config.json"), CONFIG).unwrap();
    refused(&[&name], &["no .safetensors"]);
    folder(at.path(), CONFIG, 15);
    // Weights that are not all here are not sized as if they were.
    let file = at.path().join("model.safetensors");
    let cut = std::fs::File::options().write(true).open(&file).unwrap();
    cut.set_len(15 * GIB - 5000).unwrap();
    refused(&[&name], &["model.safetensors", "header promises"]);
    std::fs::write(&file, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    refused(&[&name], &["model.safetensors", "git lfs pull"]);
    std::fs::write(&file, "12345678").unwrap();
    refused(&[&name], &["model.safetensors", "no safetensors file"]);
    let index = at.path().join("model.safetensors.index.json");
    std::fs::write(
        &index,
        r#"{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}"#,
    )
    .unwrap();
    folder(at.path(), CONFIG, 15);
    refused(&[&name], &["model-2.safetensors", "not there"]);
    std::fs::remove_file(&index).unwrap();
    refused(&[&name, "--gpu", "H1000"], &["H1000", "H100-80GB"]);
    refused(&["./no-such-folder"], &["./no-such-folder"]);
    refused(
        &["no such model"],
        &["no such model", "ORG", "neither"]
            .map(|word| if word == "ORG" { "Qwen/Qwen3-8B" } else { word }),
    );
    // Nothing fits: said, and in the exit code.
    folder(at.path(), CONFIG, 9000);
    let output = plan(&[&name, "--gpu", "T4"], None);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        printed(&output).contains("do not fit:"),
        "{}",
        printed(&output)
    );
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Answers like the hub until its test ends, and keeps its files at another place, as the hub does; tells what was
/// asked for, and whether with the token.
fn hub(files: &str) -> (String, mpsc::Receiver<(String, bool)>) {
    let files = files.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (tell, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (path, token) = answer(stream.unwrap(), &files);
            if tell.send((path, token)).is_err() {
                return;
            }
        }
    });
    (address, asked)
}

fn answer(mut stream: TcpStream, files: &str) -> (String, bool) {
    let lines: Vec<String> = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let path = lines[0].split(' ').nth(1).unwrap().to_owned();
    let token = lines
        .iter()
        .any(|line| line == "authorization: Bearer hf_planted");
    let shard = |number: u32| json!({"type": "file", "path": format!("model-{number}.safetensors"), "size": 130, "lfs": {"size": 8 * GIB, "oid": "0".repeat(64)}});
    let asked = path.replace(COMMIT, "COMMIT");
    let (status, headers, body) = match asked.as_str() {
        "/api/models/org/name/revision/main" => {
            ("200 OK", String::new(), json!({"sha": COMMIT}).to_string())
        }
        "/api/models/org/name/tree/COMMIT?recursive=true" => {
            let next = format!(
                "Link: <http://elsewhere.invalid/api/models/org/name/tree/{COMMIT}?cursor=2>; rel=\"next\"\r\n"
            );
            (
                "200 OK",
                next,
                json!([shard(1), {"type": "directory", "path": "original"}]).to_string(),
            )
        }
        "/api/models/org/name/tree/COMMIT?cursor=2" => {
            let copy = json!({"type": "file", "path": "original/model.safetensors", "size": 16 * GIB, "oid": COMMIT});
            ("200 OK", String::new(), json!([shard(2), copy]).to_string())
        }
        "/org/name/resolve/COMMIT/config.json" => (
            "307 Temporary Redirect",
            format!("Location: {files}/cdn/config.json\r\n"),
            String::new(),
        ),
        "/cdn/config.json" => ("200 OK", String::new(), CONFIG.to_owned()),
        "/api/models/org/gated/revision/main" => {
            ("401 Unauthorized", String::new(), "{}".to_owned())
        }
        _ => ("404 Not Found", String::new(), "{}".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    (path, token)
}

#[test]
fn a_model_of_the_hub_is_planned_without_its_weights() {
    let (files, elsewhere) = hub("");
    let (address, asked) = hub(&files);
    let output = plan(&["org/name", "-o", "json"], Some(&address));
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["model"], format!("org/name@{COMMIT}"));
    assert_eq!(answer["weightsBytes"], json!(16 * GIB));
    // A server tells what it was asked after its answer, which the verb need not wait for.
    let told =
        |by: &mpsc::Receiver<(String, bool)>| by.recv_timeout(Duration::from_secs(30)).unwrap();
    let asked = [(); 4].map(|()| told(&asked));
    assert!(
        asked.iter().all(|(_, token)| *token),
        "the hub itself gets the token: {asked:?}"
    );
    assert_eq!(
        told(&elsewhere),
        ("/cdn/config.json".to_owned(), false),
        "nobody else does"
    );
}

#[test]
fn a_refusal_of_the_hub_says_what_to_do_and_never_the_token() {
    let (address, _asked) = hub("");
    for (name, word) in [("org/gated", "licence"), ("org/missing", "check the name")] {
        let output = plan(&[name], Some(&address));
        assert_eq!(output.status.code(), Some(1));
        assert!(
            said(&output).contains(word) && said(&output).contains(name),
            "{}",
            said(&output)
        );
        assert!(!said(&output).contains("hf_planted"), "{}", said(&output));
    }
}

/// One node with two idle GPUs, and one whose four are all taken.
const FLEET: &str = "defaults: {pullTime: 0s, runTime: 1h}\npools:\n- {name: small, count: 1, gpu: L4, gpus: 2, labels: {gpu.warp.dev/gpu-hour-price: \"0.50\"}}\n- {name: big, count: 1, gpu: H100-80GB, gpus: 4}\n";
const CLOUD: &str = "apiVersion: gpu.warp.dev/v1alpha1\nkind: CloudProvider\nmetadata: {name: books}\nspec: {type: fake, limits: {machines: 1, pricePerHour: \"50\"}}\n";

#[tokio::test]
async fn a_cluster_says_what_starts_now_what_is_in_the_way_and_what_renting_costs() {
    let at = tempfile::tempdir().unwrap();
    let (fleet, cloud) = (at.path().join("fleet.yaml"), at.path().join("cloud.yaml"));
    std::fs::write(&fleet, FLEET).unwrap();
    std::fs::write(&cloud, CLOUD).unwrap();
    let [fleet, cloud] = [fleet, cloud].map(|file| file.display().to_string());
    let up = Up::start(&at.path().join("data"), &["--nodes", &fleet, "--ephemeral"]).await;
    up.ok(&["apply", "-f", &cloud]);
    up.ok(&[
        "run", "--yes", "--detach", "--name", "holder", "--gpus", "4", "--gpu", "H100", "--image",
        "work", "--", "sleep", "3600",
    ]);
    up.shows(
        &["get", "gpuw", "holder", "-o", "json"],
        "\"phase\": \"Running\"",
    )
    .await;
    up.shows(&["offers", "H100"], "H100").await;
    folder(at.path(), CONFIG, 15);
    let model = at.path().display().to_string();
    let arguments = ["model", "plan", &model, "--live", "-o", "json"];
    let answer: Value = serde_json::from_str(&up.ok(&arguments)).unwrap();
    let live = &answer["live"];
    let on = |gpu: &str| {
        let choices = live["choices"].as_array().unwrap();
        let found = choices.iter().find(|choice| choice["gpu"] == gpu);
        found.unwrap_or_else(|| panic!("{gpu}: {live}")).clone()
    };
    let small = on("L4");
    assert_eq!(
        (&small["count"], &small["idle"]),
        (&json!(2), &json!(2)),
        "{small}"
    );
    assert_eq!(small["now"]["nodes"], json!(["small-0"]), "{small}");
    assert_eq!(small["now"]["pricePerHour"], "$1.00", "{small}");
    assert_eq!(
        live["chosen"],
        json!({"gpu": "L4", "count": 2, "how": "starts"})
    );
    let big = on("H100-80GB");
    assert_eq!(
        (&big["idle"], &big["gpus"]),
        (&json!(0), &json!(4)),
        "{big}"
    );
    assert_eq!(big["now"]["starts"], false, "{big}");
    assert_eq!(big["now"]["displaces"], json!(["default/holder"]), "{big}");
    let price = big["rent"]["pricePerHour"].as_str().unwrap();
    assert!(price.parse::<f64>().unwrap() > 0.0, "{big}");
    let text = up.ok(&["model", "plan", &model]);
    assert!(text.contains("starts on small-0, $1.00 an hour"), "{text}");
    assert!(
        text.contains("any of default/holder would make room"),
        "{text}"
    );
    // A question about the catalogue asks nobody.
    let text = up.ok(&["model", "plan", &model, "--gpu", "L4"]);
    assert!(!text.contains("on the cluster"), "{text}");
    let none = up.warp(&["model", "plan", &model, "--live", "--catalogue"]);
    assert_eq!(none.status.code(), Some(2));
}
