//! What an MPI gang is given besides what every gang has: a key pair of its own in a Secret, and a command around the
//! workload's that starts an SSH server in every member but the first. `mpi.sh` is that command.
//!
//! The key is minted when the gang is placed, kept in the Secret alone, and goes with the workload. Nobody but the members
//! of one gang has it. Minting is the one thing here that is not pure.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, Secret, SecretKeySelector,
};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use warp_api::workload::{BadSpec, Mpi};
use warp_api::{GPUWorkload, label};

use super::gang::service_name;
use super::objects::owned_by;

/// What every member runs; the workload's command follows as its arguments.
const SCRIPT: &str = include_str!("mpi.sh");
/// Entries of the Secret.
const PRIVATE: &str = "key";
const PUBLIC: &str = "key.pub";
/// Characters of a line of a key file.
const LINE: usize = 70;

/// Whether a workload can be an MPI gang.
pub(super) fn check(workload: &GPUWorkload, pod: &PodSpec, main: usize) -> Result<(), BadSpec> {
    if workload.spec.mpi.is_none() {
        return Ok(());
    }
    if !workload.spec.is_gang() {
        return Err(BadSpec(
            "spec.mpi is for a gang: give spec.replicas of 2 or more, or take spec.mpi out"
                .to_owned(),
        ));
    }
    let container = pod.containers.get(main);
    let command = container.and_then(|container| container.command.as_ref());
    if command.is_none_or(Vec::is_empty) {
        return Err(BadSpec(
            "spec.mpi starts the workload's command in the first member: give spec.command, such as [mpirun, ./train]"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Puts the command and what it reads around the workload's.
pub(super) fn equip(
    pod: &mut PodSpec,
    main: usize,
    workload: &GPUWorkload,
    mpi: &Mpi,
    hosts: impl Iterator<Item = String>,
) {
    let Some(container) = pod.containers.get_mut(main) else {
        return;
    };
    let own = container.command.take().unwrap_or_default();
    let around = ["/bin/sh", "-c", SCRIPT, "warp-mpi"].map(str::to_owned);
    container.command = Some(around.into_iter().chain(own).collect());
    let secret = |entry: &str| EnvVarSource {
        secret_key_ref: Some(SecretKeySelector {
            name: service_name(workload),
            key: entry.to_owned(),
            optional: None,
        }),
        ..Default::default()
    };
    let address = EnvVarSource {
        field_ref: Some(ObjectFieldSelector {
            api_version: None,
            field_path: "status.podIP".to_owned(),
        }),
        ..Default::default()
    };
    let from = |name: &str, source: EnvVarSource| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(source),
    };
    let said = |name: String, value: String| EnvVar {
        name,
        value: Some(value),
        value_from: None,
    };
    let slots = mpi.slots.unwrap_or(workload.spec.gpu_count);
    let env = container.env.get_or_insert_default();
    env.extend([
        from("WARP_MPI_KEY", secret(PRIVATE)),
        from("WARP_MPI_PUBLIC_KEY", secret(PUBLIC)),
        from("WARP_MPI_ADDRESS", address),
        said("WARP_MPI_PORT".to_owned(), mpi.port().to_string()),
        said("WARP_MPI_SLOTS".to_owned(), slots.to_string()),
    ]);
    let hosts = hosts.enumerate();
    env.extend(hosts.map(|(rank, host)| said(format!("WARP_MPI_HOST_{rank}"), host)));
}

/// A Secret with a fresh key pair, for all attempts of a workload; none when the machine has no randomness to give.
pub(super) fn secret(workload: &GPUWorkload) -> Option<Secret> {
    let random = SystemRandom::new();
    let seed: [u8; 32] = ring::rand::generate(&random).ok()?.expose();
    let check: [u8; 4] = ring::rand::generate(&random).ok()?.expose();
    let (private, public) = key_files(&seed, check)?;
    let labels = [
        (label::WORKLOAD, workload.name_any()),
        (label::WORKLOAD_UID, workload.uid().unwrap_or_default()),
        (label::CONTROLLER, label::CONTROLLER_NAME.to_owned()),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value));
    let data = [(PRIVATE.to_owned(), private), (PUBLIC.to_owned(), public)];
    Some(Secret {
        metadata: ObjectMeta {
            name: Some(service_name(workload)),
            namespace: workload.namespace(),
            labels: Some(labels.into_iter().collect()),
            owner_references: owned_by(workload),
            ..Default::default()
        },
        string_data: Some(BTreeMap::from(data)),
        ..Default::default()
    })
}

/// A key pair as OpenSSH keeps it: the private key's file and the public one's.
fn key_files(seed: &[u8; 32], check: [u8; 4]) -> Option<(String, String)> {
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
    let public_key = pair.public_key().as_ref();
    let mut public = Vec::new();
    put(&mut public, b"ssh-ed25519");
    put(&mut public, public_key);
    let mut secret = Vec::new();
    secret.extend(check);
    secret.extend(check);
    secret.extend(&public);
    put(&mut secret, &[seed, public_key].concat());
    put(&mut secret, b"warp");
    let padding = (1_u8..).take((8 - secret.len() % 8) % 8);
    secret.extend(padding);
    let mut file = b"openssh-key-v1\0".to_vec();
    // No cipher, no way to derive its key, and nothing to derive it from.
    for none in [b"none".as_slice(), b"none", b""] {
        put(&mut file, none);
    }
    file.extend(1_u32.to_be_bytes());
    put(&mut file, &public);
    put(&mut file, &secret);
    let encoded = STANDARD.encode(&file);
    let lines = encoded.as_bytes().chunks(LINE);
    let lines: Vec<&str> = lines
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    let private = format!(
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
        lines.join("\n")
    );
    Some((
        private,
        format!("ssh-ed25519 {} warp\n", STANDARD.encode(&public)),
    ))
}

/// Adds a text with its length before it.
fn put(to: &mut Vec<u8>, text: &[u8]) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    to.extend(length.to_be_bytes());
    to.extend(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_written_as_openssh_reads_it() {
        let (private, public) = key_files(&[7; 32], [1, 2, 3, 4]).unwrap();
        let inner: String = private
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        assert!(private.lines().all(|line| line.len() <= LINE));
        let bytes = STANDARD.decode(inner).unwrap();
        assert!(
            bytes.starts_with(b"openssh-key-v1\0\0\0\0\x04none\0\0\0\x04none\0\0\0\0\0\0\0\x01")
        );
        let blob = public.split_whitespace().nth(1).unwrap();
        let blob = STANDARD.decode(blob).unwrap();
        assert_eq!(&blob[..15], b"\0\0\0\x0bssh-ed25519");
        assert_eq!(blob.len(), 4 + 11 + 4 + 32);
        // The public half is in the private file twice, and its section is padded to whole blocks.
        let times = bytes
            .windows(32)
            .filter(|part| *part == &blob[19..])
            .count();
        assert_eq!(times, 3);
        let section = u32::from_be_bytes(bytes[39 + 4 + 51..][..4].try_into().unwrap());
        assert_eq!(section % 8, 0);
        assert_eq!(bytes.len(), 39 + 4 + 51 + 4 + section as usize);
    }

    #[test]
    fn no_two_gangs_have_the_same_key() {
        let workload = super::super::tests::workload(
            serde_json::json!({"replicas": 2, "mpi": {}}),
            serde_json::json!(null),
        );
        let key = || secret(&workload).unwrap().string_data.unwrap()[PRIVATE].clone();
        assert_ne!(key(), key());
    }
}
