//! Kubernetes' protobuf envelope and what is in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let body = [b"k8s\0".as_slice(), data].concat();
    warp_fuzz::ask("POST", "/apis/apps/v1/namespaces/default/deployments?dryRun=All", "application/vnd.kubernetes.protobuf", body);
});
