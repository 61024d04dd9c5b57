//! Schemas of definitions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(schema) = serde_json::from_slice(data) else { return };
    warp_fuzz::define(&schema);
});
