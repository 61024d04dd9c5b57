//! Credentials of registries: `imagePullSecrets` of a pod as the header an engine takes.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::super::contents::ContentError;

/// What images without a registry in their name come from, as the files of `docker login` call it.
const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Headers for the image's registry, in the order of the pod's secrets. A secret that is not there is
/// passed over, as on a kubelet: the image may be public.
pub(super) async fn of(
    client: &Client,
    pod: &Pod,
    image: &str,
) -> Result<Vec<String>, ContentError> {
    let names = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let registry = registry(image);
    let mut headers = Vec::new();
    for reference in names {
        let found =
            secrets
                .get_opt(&reference.name)
                .await
                .map_err(|source| ContentError::Read {
                    kind: "secret",
                    name: reference.name.clone(),
                    source: Box::new(source),
                })?;
        headers.extend(found.iter().flat_map(|secret| matching(secret, registry)));
    }
    Ok(headers)
}

/// `registry:5000/team/name:tag` → `registry:5000`.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => HUB,
    }
}

fn matching(secret: &Secret, registry: &str) -> Vec<String> {
    let data = |key: &str| {
        let bytes = &secret.data.as_ref()?.get(key)?.0;
        serde_json::from_slice::<Value>(bytes).ok()
    };
    // The newer form has one level more.
    let auths = data(".dockerconfigjson")
        .and_then(|mut file| Some(file.get_mut("auths")?.take()))
        .or_else(|| data(".dockercfg"));
    let auths = auths.unwrap_or_default();
    auths
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(place, _)| is_for(place, registry))
        .filter_map(|(place, entry)| header(place, entry))
        .collect()
}

/// `https://host/v1/` and `host` name the same registry, and the hub has several names.
fn is_for(place: &str, registry: &str) -> bool {
    let bare = place
        .trim_start_matches("https://")
        .trim_start_matches("http://");
    let host = bare.split('/').next().unwrap_or(bare);
    host == registry || (HUB_NAMES.contains(&host) && HUB_NAMES.contains(&registry))
}

fn header(place: &str, entry: &Value) -> Option<String> {
    let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
    let auth = text("auth").and_then(|auth| {
        let pair = String::from_utf8(STANDARD.decode(auth).ok()?).ok()?;
        let (user, password) = pair.split_once(':')?;
        Some((user.to_owned(), password.to_owned()))
    });
    let given = text("username")
        .zip(text("password"))
        .map(|(user, password)| (user.to_owned(), password.to_owned()));
    let mut login = match given.or(auth) {
        Some((user, password)) => json!({"username": user, "password": password}),
        None => json!({}),
    };
    if let Some(token) = text("identitytoken") {
        login["identitytoken"] = json!(token);
    }
    if login.as_object().is_none_or(serde_json::Map::is_empty) {
        return None;
    }
    login["serveraddress"] = json!(place);
    Some(URL_SAFE.encode(login.to_string()))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::{Value, json};

    use super::{matching, registry};

    #[test]
    fn an_image_gets_the_credentials_of_its_registry_and_of_no_other() {
        for (image, expected) in [
            ("busybox", "docker.io"),
            ("team/app:1", "docker.io"),
            ("ghcr.example/team/app", "ghcr.example"),
            ("localhost/app", "localhost"),
            ("registry:5000/app:1", "registry:5000"),
        ] {
            assert_eq!(registry(image), expected);
        }
        let file = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:one:two")},
            "registry:5000": {"username": "me", "password": "secret"},
            "other.example": {"auth": "not base64"}}});
        let secret = Secret {
            data: Some(
                [(
                    ".dockerconfigjson".to_owned(),
                    ByteString(file.to_string().into()),
                )]
                .into(),
            ),
            ..Secret::default()
        };
        let login = |image: &str| -> Vec<Value> {
            matching(&secret, registry(image))
                .iter()
                .map(|header| serde_json::from_slice(&URL_SAFE.decode(header).unwrap()).unwrap())
                .collect()
        };
        let hub = login("busybox");
        assert_eq!(
            (&hub[0]["username"], &hub[0]["password"]),
            (&json!("hub"), &json!("one:two"))
        );
        let own = login("registry:5000/app");
        assert_eq!(
            (&own[0]["username"], &own[0]["password"]),
            (&json!("me"), &json!("secret"))
        );
        assert!(login("other.example/app").is_empty() && login("third.example/app").is_empty());
    }
}
