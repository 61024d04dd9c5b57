//! Paths and methods of anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (text, _) = warp_fuzz::split(data);
    let (method, path) = text.split_once(' ').unwrap_or(("GET", &text));
    warp_fuzz::ask(method, &format!("/{}", path.trim_start_matches('/')), "application/json", Vec::new());
});
