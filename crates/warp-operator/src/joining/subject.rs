//! Whom a request for a certificate is about: its subject, and whether it asks for anything beside. Pure.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

/// What a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) names: Vec<String>,
    pub(super) organisations: Vec<String>,
    /// Parts of the subject that are neither, and other names or extensions.
    pub(super) more: usize,
}

/// Reads a request; none when it is none.
pub(super) fn read(pem: &[u8]) -> Option<Subject> {
    let (rest, pem) = parse_x509_pem(pem).ok()?;
    if pem.label != "CERTIFICATE REQUEST" || !rest.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let info = &request.certification_request_info;
    let texts = |parts: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
        let texts = parts
            .into_iter()
            .map(|part| part.as_str().map(str::to_owned));
        texts.collect::<Result<Vec<_>, _>>().ok()
    };
    let names: Vec<_> = info.subject.iter_common_name().collect();
    let organisations: Vec<_> = info.subject.iter_organization().collect();
    let parts = info.subject.iter_attributes().count();
    Some(Subject {
        more: parts - names.len() - organisations.len() + info.attributes().len(),
        names: texts(names)?,
        organisations: texts(organisations)?,
    })
}
