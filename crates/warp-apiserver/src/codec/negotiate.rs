//! What form the client accepts.

use crate::codec::status::Status;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub yaml: bool,
    pub view: View,
}

/// What is made of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Object,
    /// `as=Table`, with the version of `meta.k8s.io` to say in it.
    Table(&'static str),
    /// `as=PartialObjectMetadata` or its list.
    Metadata(&'static str),
}

impl Form {
    pub const JSON: Self = Self {
        yaml: false,
        view: View::Object,
    };
}

struct Offer<'a> {
    media: &'a str,
    params: Vec<(&'a str, &'a str)>,
    weight: f32,
}

fn offers(accept: &str) -> Vec<Offer<'_>> {
    let mut offers: Vec<Offer<'_>> = accept
        .split(',')
        .filter_map(|part| {
            let mut parts = part.split(';').map(str::trim);
            let media = parts.next().filter(|media| !media.is_empty())?;
            let params: Vec<_> = parts.filter_map(|param| param.split_once('=')).collect();
            let weight = params
                .iter()
                .find(|(name, _)| *name == "q")
                .and_then(|(_, value)| value.parse().ok())
                .unwrap_or(1.0);
            Some(Offer {
                media,
                params,
                weight,
            })
        })
        .collect();
    offers.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    offers
}

/// The first offer this server can serve.
pub fn negotiate(accept: &str) -> Result<Form, Status> {
    if accept.trim().is_empty() {
        return Ok(Form::JSON);
    }
    offers(accept)
        .into_iter()
        .find_map(|offer| form(&offer))
        .ok_or_else(Status::no_such_form)
}

fn form(offer: &Offer<'_>) -> Option<Form> {
    let yaml = match offer.media {
        "application/json" | "*/*" | "application/*" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let param = |name: &str| {
        offer
            .params
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    };
    let version = match param("v") {
        Some("v1beta1") => "v1beta1",
        _ => "v1",
    };
    let view = match param("as") {
        None => View::Object,
        Some("Table") => View::Table(version),
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") => View::Metadata(version),
        Some(_) => return None,
    };
    if view != View::Object && param("g").is_some_and(|group| group != "meta.k8s.io") {
        return None;
    }
    Some(Form { yaml, view })
}

/// Whether aggregated discovery is wanted, and in which version, before plain discovery.
pub fn aggregated(accept: &str) -> Option<&'static str> {
    for offer in offers(accept) {
        let param = |name: &str| {
            offer
                .params
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        };
        if offer.media != "application/json" {
            continue;
        }
        match (param("as"), param("v")) {
            (Some("APIGroupDiscoveryList"), Some("v2")) => return Some("v2"),
            (Some("APIGroupDiscoveryList"), Some("v2beta1")) => return Some("v2beta1"),
            (None, _) => return None,
            _ => {}
        }
    }
    None
}
