//! JSON and YAML bodies of creates, one kind per first byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let paths = ["/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/deployments", "/apis/batch/v1/namespaces/default/jobs", "/api/v1/nodes"];
    let path = paths[usize::from(*first) % paths.len()];
    let kind = if first % 2 == 0 { "application/json" } else { "application/yaml" };
    warp_fuzz::ask("POST", &format!("{path}?dryRun=All"), kind, body.to_vec());
});
