//! Signs requests as Amazon's Signature Version 4 asks, for S3 and for stores that speak its language. Pure: the time
//! is given.

use std::fmt::{self, Debug};

use http::{Method, Uri};
use jiff::Timestamp;
use ring::hmac;

use crate::digest::{hex, sha256_hex};

/// What a store knows a reader by.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub key_id: String,
    pub secret: String,
    pub session_token: Option<String>,
}

impl Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Credentials and the region they are used in.
#[derive(Clone, Debug)]
pub(crate) struct Signer {
    pub(crate) credentials: Credentials,
    pub(crate) region: String,
}

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";

impl Signer {
    /// The headers that make a request without a body a signed one. Query and path are taken as they stand in the
    /// address, escaped.
    pub(crate) fn headers(
        &self,
        method: &Method,
        address: &Uri,
        now: Timestamp,
    ) -> Vec<(&'static str, String)> {
        let stamp = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = stamp[..8].to_owned();
        let body = sha256_hex(b"");
        let mut headers = vec![("host", host(address))];
        if *method == Method::HEAD {
            // Asks for the digest the store keeps.
            headers.push(("x-amz-checksum-mode", "ENABLED".to_owned()));
        }
        headers.push(("x-amz-content-sha256", body.clone()));
        headers.push(("x-amz-date", stamp.clone()));
        if let Some(token) = &self.credentials.session_token {
            headers.push(("x-amz-security-token", token.clone()));
        }
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers
            .iter()
            .flat_map(|(name, value)| [*name, ":", value.trim(), "\n"])
            .collect();
        let canonical = format!(
            "{method}\n{}\n{}\n{lines}\n{names}\n{body}",
            address.path(),
            query(address)
        );
        let scope = format!("{day}/{}/{SERVICE}/aws4_request", self.region);
        let to_sign = format!(
            "{ALGORITHM}\n{stamp}\n{scope}\n{}",
            sha256_hex(canonical.as_bytes())
        );
        let signature = hex(&keyed(&self.key(&day), &to_sign));
        let key_id = &self.credentials.key_id;
        headers.push((
            "authorization",
            format!(
                "{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
            ),
        ));
        headers
    }

    /// The key of one day, region and service.
    fn key(&self, day: &str) -> Vec<u8> {
        let secret = format!("AWS4{}", self.credentials.secret);
        [day, &self.region, SERVICE, "aws4_request"]
            .iter()
            .fold(secret.into_bytes(), |key, part| keyed(&key, part))
    }
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

/// The host as the request names it: a port only where it is not the scheme's own.
fn host(address: &Uri) -> String {
    let host = address.host().unwrap_or_default();
    let usual = match address.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    match address.port_u16() {
        Some(port) if port != usual => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}

/// The parameters in alphabetical order.
fn query(address: &Uri) -> String {
    let mut pairs: Vec<String> = address
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            if pair.contains('=') {
                pair.to_owned()
            } else {
                format!("{pair}=")
            }
        })
        .collect();
    pairs.sort();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(session_token: Option<&str>) -> Signer {
        Signer {
            credentials: Credentials {
                key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
                secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
                session_token: session_token.map(str::to_owned),
            },
            region: "us-east-1".to_owned(),
        }
    }

    #[test]
    fn the_vendors_own_example_has_the_vendors_own_signature() {
        let address = "https://examplebucket.s3.amazonaws.com/?prefix=J&max-keys=2";
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let headers = signer(None).headers(&Method::GET, &address.parse().unwrap(), now);
        let (name, value) = headers.last().unwrap();
        assert_eq!(*name, "authorization");
        assert_eq!(
            value,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn a_secret_is_not_shown_and_a_session_is_signed() {
        let signer = signer(Some("s3ss10n"));
        assert!(!format!("{signer:?}").contains("wJalr"), "{signer:?}");
        let address = "http://127.0.0.1:9000/b".parse().unwrap();
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let headers = signer.headers(&Method::GET, &address, now);
        assert_eq!(headers[0], ("host", "127.0.0.1:9000".to_owned()));
        let signed = &headers.last().unwrap().1;
        assert!(
            signed.contains("x-amz-date;x-amz-security-token,"),
            "{signed}"
        );
    }
}
