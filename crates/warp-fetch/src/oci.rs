//! The files of an OCI artifact: its layers, named as ORAS and ModelPack name them, each known by its digest. A tag is
//! pinned to the digest it leads to, which is the commit. Layers that are archives are refused by their names: what they
//! unpack to is known by no digest.

use http::HeaderMap;
use serde_json::Value;

use crate::client::Client;
use crate::digest::{Digest, sha256_hex};
use crate::error::FetchError;
use crate::listing::{Listing, Place, RemoteFile};
use crate::plain::tame;
use crate::registry::Registry;
use crate::source::Artifact;

/// Manifests and indexes that are understood.
const FORMS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                     application/vnd.docker.distribution.manifest.v2+json, \
                     application/vnd.docker.distribution.manifest.list.v2+json";
/// What registries take at most.
const MANIFEST_LIMIT_BYTES: usize = 4 << 20;
/// How often a manifest whose digest is wrong is asked for.
const TRIES: u32 = 2;
/// A layer that stands for none.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// Where the names of files are, the first one first.
const NAMES: [&str; 2] = ["org.cncf.model.filepath", "org.opencontainers.image.title"];
/// ORAS says with it that a layer is a folder.
const UNPACK: &str = "io.deis.oras.content.unpack";

/// The address below which manifests and blobs of an artifact are.
pub(crate) fn base(registry: &Registry, artifact: &Artifact) -> String {
    format!("{}/v2/{}", registry.home(artifact), artifact.repository)
}

/// What an artifact has.
pub(crate) async fn list(
    client: &Client,
    registry: &Registry,
    artifact: &Artifact,
) -> Result<Listing, FetchError> {
    let base = base(registry, artifact);
    let reference = match &artifact.sha256 {
        Some(hex) => format!("sha256:{hex}"),
        None => artifact.tag.clone(),
    };
    let (top, commit) = document(client, &base, &reference).await?;
    let manifest = if top["manifests"].is_array() {
        let chosen = choose(&top).map_err(|why| nonsense(artifact, &why))?;
        document(client, &base, &chosen).await?.0
    } else {
        top
    };
    let files = files(&manifest, &base).map_err(|why| nonsense(artifact, &why))?;
    Ok(Listing {
        name: format!(
            "{}/{}",
            tame(&artifact.registry),
            tame(&artifact.repository)
        ),
        revision: match artifact.sha256 {
            Some(_) => commit.clone(),
            None => artifact.tag.clone(),
        },
        commit: Some(commit),
        files,
    })
}

/// A manifest or an index with its SHA-256, which is the one that was promised.
async fn document(
    client: &Client,
    base: &str,
    reference: &str,
) -> Result<(Value, String), FetchError> {
    let address = format!("{base}/manifests/{reference}");
    let mut tries = 0;
    loop {
        let (body, headers) = client
            .whole_as(&address, Some(FORMS), MANIFEST_LIMIT_BYTES)
            .await?;
        let found = sha256_hex(&body);
        tries += 1;
        match promised(reference, &headers).filter(|promised| *promised != found) {
            Some(_) if tries < TRIES => {}
            Some(promised) => {
                return Err(FetchError::Corrupt {
                    file: format!("the manifest {reference}"),
                    expected: format!("sha256:{promised}"),
                    found: format!("sha256:{found}"),
                    tries,
                });
            }
            None => {
                let manifest = serde_json::from_slice(&body).unwrap_or_default();
                return Ok((manifest, found));
            }
        }
    }
}

/// What a manifest must hash to: as it is asked for, or as the registry says.
fn promised(reference: &str, headers: &HeaderMap) -> Option<String> {
    let said = headers.get("docker-content-digest");
    let said = said.and_then(|text| text.to_str().ok());
    let digest = [Some(reference), said].into_iter().flatten();
    digest
        .filter_map(|digest| digest.strip_prefix("sha256:"))
        .map(str::to_lowercase)
        .next()
}

/// The manifest of an index that is meant: the only one, or the one for this machine.
fn choose(index: &Value) -> Result<String, String> {
    let all = index["manifests"].as_array().into_iter().flatten();
    // What is said about another manifest is none.
    let all: Vec<&Value> = all
        .filter(|one| one["annotations"]["vnd.docker.reference.type"].is_null())
        .collect();
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let here = |one: &&&Value| {
        one["platform"]["os"] == "linux" && one["platform"]["architecture"] == machine
    };
    let chosen = match all.as_slice() {
        [only] => Some(*only),
        several => several.iter().find(here).copied(),
    };
    let digest = chosen.and_then(|one| one["digest"].as_str());
    let digest = digest.filter(|digest| sha256(digest).is_some());
    digest.map(str::to_owned).ok_or_else(|| {
        format!(
            "it is an index of {} manifests and none is the one; name one by its digest",
            all.len()
        )
    })
}

fn sha256(digest: &str) -> Option<Digest> {
    Digest::sha256(digest.strip_prefix("sha256:")?)
}

/// The layers of a manifest as files.
fn files(manifest: &Value, base: &str) -> Result<Vec<RemoteFile>, String> {
    let layers = manifest["layers"].as_array();
    let layers = layers.ok_or("it is no manifest with layers")?;
    let real = layers.iter().filter(|layer| layer["mediaType"] != EMPTY);
    real.map(|layer| file(layer, base)).collect()
}

fn file(layer: &Value, base: &str) -> Result<RemoteFile, String> {
    let given = layer["digest"].as_str().unwrap_or_default();
    let digest = sha256(given).ok_or_else(|| {
        let shown: String = given
            .chars()
            .filter(char::is_ascii_graphic)
            .take(100)
            .collect();
        format!("a layer has the digest '{shown}', which is no SHA-256")
    })?;
    let size = layer["size"].as_u64();
    let size = size.ok_or_else(|| format!("layer {digest} has no size"))?;
    let notes = &layer["annotations"];
    let name = NAMES.iter().find_map(|name| notes[*name].as_str());
    let kind = layer["mediaType"].as_str().unwrap_or_default();
    let packed = notes[UNPACK] == "true" || is_archive(kind);
    match name {
        Some(name) if packed => Err(format!(
            "'{name}' is an archive ({kind}); publish its files as they are, with `oras push FILE…` or `modctl build --raw`"
        )),
        None => Err(format!(
            "layer {digest} ({kind}) has no file name ({} or {}); an image of a container is no model",
            NAMES[0], NAMES[1]
        )),
        Some(name) => Ok(RemoteFile {
            path: name.to_owned(),
            size,
            digest: Some(digest),
            checksum: None,
            validator: None,
            place: Place::Address(format!("{base}/blobs/{digest}")),
        }),
    }
}

/// Whether a layer of ModelPack is an archive. Of others the form says nothing: ORAS calls every file one.
fn is_archive(kind: &str) -> bool {
    let rest = kind.strip_prefix("application/vnd.cncf.model.");
    rest.is_some_and(|rest| rest.split(['.', '+']).any(|part| part == "tar"))
}

fn nonsense(artifact: &Artifact, why: &str) -> FetchError {
    FetchError::Nonsense {
        what: format!("{}/{}", artifact.registry, artifact.repository),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HEX: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn layer(kind: &str, notes: &Value) -> Value {
        json!({"mediaType": kind, "digest": format!("sha256:{HEX}"), "size": 5, "annotations": notes})
    }

    #[test]
    fn layers_are_named_as_modelpack_and_oras_name_them() {
        let title = json!({"org.opencontainers.image.title": "a/b.json"});
        let both = json!({
            "org.opencontainers.image.title": "x", "org.cncf.model.filepath": "w.safetensors",
        });
        let manifest = json!({"layers": [
            layer("application/vnd.oci.image.layer.v1.tar", &title),
            layer("application/vnd.cncf.model.weight.v1.raw", &both),
            layer(EMPTY, &json!({})),
        ]});
        let found = files(&manifest, "http://r/v2/m").unwrap();
        let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a/b.json", "w.safetensors"]);
        assert_eq!(found[0].digest, Digest::sha256(HEX));
        let place = format!("http://r/v2/m/blobs/sha256:{HEX}");
        assert_eq!(found[0].place, Place::Address(place));
    }

    #[test]
    fn archives_and_layers_without_a_name_are_refused_by_name() {
        let said = |layer: Value| files(&json!({"layers": [layer]}), "").unwrap_err();
        let packed = json!({"org.opencontainers.image.title": "folder", UNPACK: "true"});
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        assert!(said(layer(kind, &packed)).contains("'folder' is an archive"));
        let title = json!({"org.cncf.model.filepath": "w"});
        for kind in ["weight.v1.tar", "weight.v1.tar+gzip", "doc.v1.tar+zstd"] {
            let kind = format!("application/vnd.cncf.model.{kind}");
            assert!(
                said(layer(&kind, &title)).contains("is an archive"),
                "{kind}"
            );
        }
        assert!(said(layer(kind, &json!({}))).contains("has no file name"));
        let mut other = layer(kind, &title);
        other["digest"] = json!("sha512:12");
        assert!(said(other).contains("no SHA-256"));
        assert!(files(&json!({}), "").is_err());
    }

    #[test]
    fn of_an_index_the_only_manifest_or_the_one_for_this_machine_is_meant() {
        let one = |digit: &str, platform: &Value| json!({"digest": format!("sha256:{}", digit.repeat(64)), "platform": platform});
        let about = json!({
            "digest": format!("sha256:{HEX}"), "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
        });
        let only = json!({"manifests": [about, one("1", &Value::Null)]});
        assert_eq!(choose(&only), Ok(format!("sha256:{}", "1".repeat(64))));
        let arch = if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        };
        let several = json!({"manifests": [
            one("2", &json!({"os": "linux", "architecture": "s390x"})),
            one("3", &json!({"os": "linux", "architecture": arch})),
        ]});
        assert_eq!(choose(&several), Ok(format!("sha256:{}", "3".repeat(64))));
        let neither = json!({"manifests": [one("1", &Value::Null), one("2", &Value::Null)]});
        assert!(
            choose(&neither)
                .unwrap_err()
                .contains("index of 2 manifests")
        );
        assert!(choose(&json!({"manifests": [{"digest": "sha256:../x"}]})).is_err());
    }
}
