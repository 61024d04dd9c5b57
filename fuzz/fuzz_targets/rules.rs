//! CEL rules of definitions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (rule, message) = warp_fuzz::split(data);
    warp_fuzz::define(&warp_fuzz::ruled(&rule, &message));
});
