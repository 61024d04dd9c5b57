//! Which request for a node's certificate is the machine's own. Only that is approved, and only the first; everything
//! else is left alone, for whoever else approves certificates here. Pure.

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use serde_json::json;
use warp_cloud::join::token_id;
use warp_runtime::cache::Key;
use warp_runtime::plan::{Action, Kind, as_json};

use super::subject;

/// Who signs the certificates nodes speak to the API server with.
pub(crate) const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const BEARERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
/// What such a certificate is for. The second list is what kubelets ask for whose key does not encipher.
const USES: [&[&str]; 2] = [
    &["client auth", "digital signature", "key encipherment"],
    &["client auth", "digital signature"],
];

fn bearer(machine: &str) -> String {
    format!("system:bootstrap:{}", token_id(machine))
}

fn node(machine: &str) -> String {
    format!("system:node:{machine}")
}

/// Whether a request was made with a machine's token, or in its name.
pub(super) fn is_about(request: &CertificateSigningRequest, machine: &str) -> bool {
    let token = request.spec.username.as_deref() == Some(&*bearer(machine));
    let subject = subject::read(&request.spec.request.0).unwrap_or_default();
    token || subject.names.contains(&node(machine))
}

/// Whether somebody has decided on it already.
pub(crate) fn is_decided(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_some_and(|status| {
        status
            .conditions
            .as_ref()
            .is_some_and(|all| !all.is_empty())
    })
}

/// Why a request is not the machine's own; none when it is.
pub(crate) fn objection(request: &CertificateSigningRequest, machine: &str) -> Option<String> {
    let spec = &request.spec;
    if spec.username.as_deref() != Some(&*bearer(machine)) {
        let by = spec.username.as_deref().unwrap_or("nobody");
        return Some(format!(
            "it was made by {by} and not with the machine's token"
        ));
    }
    if !spec.groups.iter().flatten().any(|group| group == BEARERS) {
        return Some(format!("whoever made it is not of {BEARERS}"));
    }
    if spec.signer_name != SIGNER {
        return Some(format!("its signer is {}", spec.signer_name));
    }
    let mut uses: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    uses.sort_unstable();
    if !USES.contains(&uses.as_slice()) {
        return Some(format!("it is for {}", uses.join(", ")));
    }
    let Some(subject) = subject::read(&spec.request.0) else {
        return Some("it cannot be read".to_owned());
    };
    if subject.names != [node(machine)] {
        return Some(format!("it is for {}", subject.names.join(", ")));
    }
    if subject.organisations != [NODES] {
        return Some(format!(
            "its organisation is {}",
            subject.organisations.join(", ")
        ));
    }
    (subject.more > 0).then(|| "it asks for more than a node's name".to_owned())
}

/// Approves this version of a request.
pub(crate) fn approval(
    request: &CertificateSigningRequest,
    machine: &str,
    now: Timestamp,
) -> Action {
    let mut object = as_json(request);
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    object["status"]["conditions"] = json!([{
        "type": "Approved", "status": "True", "reason": "RentedMachine",
        "message": format!("the first request made with the token of the rented machine {machine}"),
        "lastUpdateTime": at, "lastTransitionTime": at,
    }]);
    Action::Sub {
        kind: Kind::of::<CertificateSigningRequest>(),
        key: Key::new("", &request.name_any()),
        sub: "approval",
        put: true,
        object,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;

    use super::*;

    const MACHINE: &str = "warp-5f0c2a9e-0b7a1c7e-8d0e-4f43-9d0f-0a4b6f9f2d11-1";
    const OWN: &str = include_str!("own.csr");
    const OTHER: &str = include_str!("other.csr");
    const MASTERS: &str = include_str!("masters.csr");
    const ALSO: &str = include_str!("also.csr");

    fn request(pem: &str) -> CertificateSigningRequest {
        let text = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        CertificateSigningRequest {
            metadata: kube::api::ObjectMeta::default(),
            spec: CertificateSigningRequestSpec {
                username: Some(bearer(MACHINE)),
                groups: text(&[
                    "system:bootstrappers",
                    "system:bootstrappers:warp",
                    "system:authenticated",
                ]),
                signer_name: SIGNER.to_owned(),
                usages: text(&["digital signature", "client auth"]),
                request: ByteString(pem.as_bytes().to_vec()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }

    #[test]
    fn a_machines_own_request_is_known_by_token_name_organisation_and_use() {
        assert_eq!(objection(&request(OWN), MACHINE), None);
        let mut with_key = request(OWN);
        let usages = with_key.spec.usages.as_mut().expect("usages");
        usages.push("key encipherment".to_owned());
        assert_eq!(objection(&with_key, MACHINE), None);
    }

    #[test]
    fn everything_else_is_left_alone_and_said_why() {
        let mut by_another = request(OWN);
        by_another.spec.username = Some("system:bootstrap:abcdef".to_owned());
        let mut by_a_person = request(OWN);
        by_a_person.spec.groups = Some(vec!["system:authenticated".to_owned()]);
        let mut serving = request(OWN);
        serving.spec.signer_name = "kubernetes.io/kubelet-serving".to_owned();
        let mut server = request(OWN);
        server.spec.usages = Some(vec!["server auth".to_owned()]);
        for (request, why) in [
            (by_another, "not with the machine's token"),
            (by_a_person, "not of system:bootstrappers"),
            (serving, "its signer is kubernetes.io/kubelet-serving"),
            (server, "it is for server auth"),
            (request(OTHER), "it is for system:node:another"),
            (request(MASTERS), "its organisation is system:masters"),
            (request(ALSO), "more than a node's name"),
            (request("nonsense"), "cannot be read"),
            (request(&format!("{OWN}{OTHER}")), "cannot be read"),
        ] {
            let said = objection(&request, MACHINE).unwrap_or_default();
            assert!(said.contains(why), "{said}, not {why}");
        }
    }

    #[test]
    fn a_request_is_about_a_machine_by_its_token_or_its_name() {
        let mut by_a_person = request(OWN);
        by_a_person.spec.username = Some("mallory".to_owned());
        assert!(is_about(&by_a_person, MACHINE));
        assert!(is_about(&request(OTHER), MACHINE));
        by_a_person.spec.request = ByteString(OTHER.as_bytes().to_vec());
        assert!(!is_about(&by_a_person, MACHINE));
    }
}
