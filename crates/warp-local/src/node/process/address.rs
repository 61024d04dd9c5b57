//! Where a pod's processes listen. They share the machine's network, so most share its address; an engine is given a
//! loopback address of its own, so that any number of replicas listen on one port.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use super::WARP_IMAGE;

/// On a pod: `true` gives it a loopback address of its own, which its command must listen on (`status.podIP`).
pub(crate) const OWN_ADDRESS: &str = "process.gpu.warp.dev/own-address";

/// The part of the loopback network that is given out: 127.128.0.0 to 127.254.255.255.
const FIRST: u32 = u32::from_be_bytes([127, 128, 0, 0]);
const COUNT: u32 = u32::from_be_bytes([127, 255, 0, 0]) - FIRST;

/// Addresses in use, and by which pod.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<BTreeMap<u32, String>>);

impl Addresses {
    /// The address of `pod`, the same one every time; none when it shares the machine's.
    pub(super) fn of(&self, pod: &Pod) -> Option<String> {
        if !wants_own(pod) {
            return None;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut used = self.0.lock();
        if let Some((address, _)) = used.iter().find(|(_, owner)| **owner == uid) {
            return Some(Ipv4Addr::from(*address).to_string());
        }
        // Known from before a restart of ours.
        let known = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_ref());
        let known = known
            .and_then(|text| text.parse::<Ipv4Addr>().ok())
            .map(u32::from)
            .filter(|address| (FIRST..FIRST + COUNT).contains(address));
        let start = known.unwrap_or_else(|| FIRST + hash(&uid) % COUNT);
        let mut address = start;
        while used.contains_key(&address) {
            address = FIRST + (address - FIRST + 1) % COUNT;
        }
        used.insert(address, uid);
        Some(Ipv4Addr::from(address).to_string())
    }

    pub(super) fn give_back(&self, uid: &str) {
        self.0.lock().retain(|_, owner| owner != uid);
    }
}

fn wants_own(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let asked = annotations.and_then(|all| all.get(OWN_ADDRESS));
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let images = containers.map(|container| container.image.as_deref());
    asked.is_some_and(|value| value == "true")
        || images.into_iter().any(|image| image == Some(WARP_IMAGE))
}

fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |name, byte| {
        (name ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, image: &str, ip: Option<&str>) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": uid, "uid": uid },
            "spec": { "containers": [{ "name": "main", "image": image }] },
            "status": { "podIP": ip },
        }))
        .unwrap()
    }

    #[test]
    fn engines_have_an_address_each_and_keep_it() {
        let addresses = Addresses::default();
        assert_eq!(addresses.of(&pod("a", "local://", None)), None);
        let first = addresses.of(&pod("a", WARP_IMAGE, None)).unwrap();
        assert!(first.starts_with("127."), "{first}");
        assert_eq!(
            addresses.of(&pod("a", WARP_IMAGE, None)),
            Some(first.clone())
        );
        let others: std::collections::BTreeSet<String> = (0..1000)
            .filter_map(|n| addresses.of(&pod(&n.to_string(), WARP_IMAGE, None)))
            .collect();
        assert_eq!(others.len(), 1000);
        assert!(!others.contains(&first));
    }

    #[test]
    fn an_address_from_before_a_restart_is_kept_and_one_given_back_is_free() {
        let addresses = Addresses::default();
        let known = Some("127.200.1.2");
        let found = addresses.of(&pod("a", WARP_IMAGE, known));
        assert_eq!(found.as_deref(), known);
        addresses.give_back("a");
        let found = addresses.of(&pod("b", WARP_IMAGE, known));
        assert_eq!(found.as_deref(), known);
    }
}
