//! Signs requests as Amazon's Signature Version 4 asks. Pure: the time is given.

use http::header::{AUTHORIZATION, HeaderName};
use jiff::Timestamp;
use ring::{digest, hmac};

/// What a request is signed with.
pub(super) struct Signer<'a> {
    pub(super) key_id: &'a str,
    pub(super) secret: &'a str,
    pub(super) session_token: Option<&'a str>,
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn sum(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

impl Signer<'_> {
    /// The headers that make a POST of `body` to the root of `host` one of ours. `others` are signed with it.
    pub(super) fn headers(
        &self,
        host: &str,
        others: &[(&'static str, &str)],
        body: &str,
        now: Timestamp,
    ) -> Vec<(HeaderName, String)> {
        let moment = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = &moment[..8];
        let mut signed: Vec<(&'static str, &str)> = others.to_vec();
        signed.push(("host", host));
        signed.push(("x-amz-date", &moment));
        if let Some(token) = self.session_token {
            signed.push(("x-amz-security-token", token));
        }
        signed.sort_unstable();
        let lines: Vec<String> = signed
            .iter()
            .map(|(name, value)| format!("{name}:{}\n", value.trim()))
            .collect();
        let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let request = format!(
            "POST\n/\n\n{}\n{names}\n{}",
            lines.concat(),
            sum(body.as_bytes())
        );
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let text = format!(
            "AWS4-HMAC-SHA256\n{moment}\n{scope}\n{}",
            sum(request.as_bytes())
        );
        let key = keyed(format!("AWS4{}", self.secret).as_bytes(), day);
        let key = keyed(
            &keyed(&keyed(&key, self.region), self.service),
            "aws4_request",
        );
        let signature = hex(&keyed(&key, &text));
        let shown = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.key_id
        );
        let mut headers = vec![(AUTHORIZATION, shown)];
        let sent = signed.iter().filter(|(name, _)| *name != "host");
        headers
            .extend(sent.map(|(name, value)| (HeaderName::from_static(name), (*value).to_owned())));
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request `post-x-www-form-urlencoded` of Amazon's published test suite.
    #[test]
    fn a_signature_is_as_amazons_suite_has_it() {
        let signer = Signer {
            key_id: "AKIDEXAMPLE",
            secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            session_token: None,
            region: "us-east-1",
            service: "service",
        };
        let kind = [("content-type", "application/x-www-form-urlencoded")];
        let now: Timestamp = "2015-08-30T12:36:00Z".parse().unwrap();
        let headers = signer.headers("example.amazonaws.com", &kind, "Param1=value1", now);
        let signature = "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a";
        assert!(headers[0].1.ends_with(signature), "{}", headers[0].1);
        assert!(
            headers[0]
                .1
                .contains("SignedHeaders=content-type;host;x-amz-date")
        );
    }
}
