//! The four kinds of patches on objects that exist.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let kinds = ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"];
    let kind = kinds[usize::from(*first) % kinds.len()];
    warp_fuzz::ask("PATCH", "/api/v1/namespaces/default/configmaps/patched?dryRun=All&fieldManager=f&force=true", kind, body.to_vec());
});
