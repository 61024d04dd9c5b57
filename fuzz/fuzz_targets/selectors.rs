//! Label and field selectors, limits, continue tokens: the query of a list.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (text, _) = warp_fuzz::split(data);
    let query = text.replace('#', "");
    warp_fuzz::ask("GET", &format!("/api/v1/namespaces/default/pods?{query}"), "application/json", Vec::new());
});
