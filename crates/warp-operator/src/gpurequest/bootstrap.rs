//! How a machine of a provider would become a node for a request, or why it may not be set up so. Pure.

use kube::ResourceExt;
use warp_api::CloudProvider;
use warp_api::cloudprovider::{BootstrapType, RequestSetting};
use warp_cloud::Kind;

use super::wanted::Wanted;
use crate::joining::alone_seconds;

/// See the module. What is wrong names the field to change.
pub(super) fn of(wanted: &Wanted, provider: &CloudProvider) -> Result<BootstrapType, String> {
    let (name, spec) = (provider.name_any(), &provider.spec);
    for (set, setting, field) in [
        (wanted.sets_image, RequestSetting::Image, "image"),
        (wanted.sets_user_data, RequestSetting::UserData, "userData"),
    ] {
        if set && !spec.requests_may_set.contains(&setting) {
            return Err(format!(
                "CloudProvider {name} lets no request set {field}: take it out, or add it to its spec.requestsMaySet"
            ));
        }
    }
    let said = spec.bootstrap.clone().unwrap_or_default();
    let kind = wanted.bootstrap.unwrap_or(said.kind);
    if kind == BootstrapType::None {
        return Ok(kind);
    }
    let of = Kind::of(spec.kind.as_str());
    if kind == BootstrapType::Container {
        return container(wanted, &name, of).map(|()| kind);
    }
    if !of.is_some_and(|kind| kind.capabilities().virtual_machines) {
        return Err(format!(
            "CloudProvider {name} has no virtual machines, so none can join by {}: take bootstrap out, or name another provider",
            kind.as_str()
        ));
    }
    if said.server.is_none() {
        return Err(format!(
            "CloudProvider {name} does not say where machines reach this cluster: set its spec.bootstrap.server"
        ));
    }
    if alone_seconds(&said).is_none() {
        return Err(format!(
            "CloudProvider {name}: spec.bootstrap.powerOffAfter is not a time such as 30m"
        ));
    }
    Ok(kind)
}

/// Whether a request may have a container of a cloud, for what it is.
fn container(wanted: &Wanted, name: &str, of: Option<Kind>) -> Result<(), String> {
    if of.is_none_or(|kind| kind.capabilities().virtual_machines) {
        return Err(format!(
            "CloudProvider {name} sells no containers: take bootstrap.type container out, or name another provider"
        ));
    }
    for (set, field) in [
        (wanted.sets_image, "image"),
        (wanted.sets_user_data, "userData"),
    ] {
        if set {
            return Err(format!(
                "a container of CloudProvider {name} is what its pod says: take {field} out"
            ));
        }
    }
    match &wanted.unfit {
        None => Ok(()),
        Some(why) => Err(format!(
            "CloudProvider {name} runs containers, and the workload cannot be one: {why}"
        )),
    }
}
