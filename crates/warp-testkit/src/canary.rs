//! Planted secrets and the search for them.
//!
//! Owns: the forms a secret may take in an output. Must not know where it was planted.

use k8s_openapi::ByteString;

/// A secret as it is, and as it reads within a longer text in base64, wherever it begins there.
pub fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    for before in 0..3 {
        let text = format!("{}{secret}", "x".repeat(before));
        // What the neighbours have a part in is left out.
        let own = (before * 8).div_ceil(6)..text.len() * 8 / 6;
        let encoded = serde_json::to_value(ByteString(text.into_bytes())).unwrap_or_default();
        let own = encoded.as_str().and_then(|encoded| encoded.get(own));
        forms.extend(own.map(str::to_owned));
    }
    forms
}

/// The form in which one of the secrets is in an output, if it is.
pub fn found<'a>(output: &[u8], secrets: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut forms = secrets.into_iter().flat_map(forms);
    forms.find(|form| {
        let mut windows = output.windows(form.len());
        windows.any(|window| window == form.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_plain_and_in_base64_wherever_it_begins() {
        let secret = "canary-secret-value";
        for before in 0..7 {
            let text = format!("{}{secret} and more", &"~!b(}?="[..before]);
            assert!(found(text.as_bytes(), [secret]).is_some());
            let encoded = serde_json::to_vec(&ByteString(text.into_bytes())).unwrap_or_default();
            let form = found(&encoded, [secret]).unwrap_or_default();
            assert!(form.len() > secret.len(), "{before}: {form}");
        }
        assert_eq!(found(b"canary-secret-valve", [secret]), None);
    }
}
