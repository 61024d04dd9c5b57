//! Addresses of pods that share the machine's network: one of 127.0.0.0/8 each, so that several may listen
//! on the same port and be told apart. It hands out addresses and remembers them; nothing is configured,
//! since Linux answers on the whole block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;

/// 127.0.x.y is left to the machine: its own name, resolvers and other software live there.
const FIRST_BLOCK: u32 = 1;
const BLOCKS: u32 = 254;
const NETS: u32 = 256;
/// The last number is neither 0 nor 255, which some software takes for a network or a broadcast.
const HOSTS: u32 = 254;
const ALL: u32 = BLOCKS * NETS * HOSTS;

/// The loopback addresses of the pods of one runtime. Copies share what is handed out.
#[derive(Clone, Debug, Default)]
pub struct Addresses(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    of_pods: BTreeMap<String, Ipv4Addr>,
    taken: BTreeSet<Ipv4Addr>,
}

impl Addresses {
    /// The address of the pod with this uid: the one it holds, else one nobody holds. It follows from the
    /// uid, so that pods of two runtimes on one machine hardly ever meet.
    pub fn take(&self, uid: &str) -> Ipv4Addr {
        let mut held = self.0.lock();
        if let Some(address) = held.of_pods.get(uid) {
            return *address;
        }
        let start = spread(uid);
        let free = (0..ALL)
            .map(|step| nth((start + step) % ALL))
            .find(|address| !held.taken.contains(address));
        let Some(address) = free else {
            // Sixteen million pods: there is nothing left to tell them apart by.
            return Ipv4Addr::LOCALHOST;
        };
        held.give(uid, address);
        address
    }

    /// The pod had this address before a restart and keeps it.
    pub fn keep(&self, uid: &str, address: Ipv4Addr) {
        let mut held = self.0.lock();
        held.release(uid);
        held.give(uid, address);
    }

    /// The pod is gone.
    pub fn release(&self, uid: &str) {
        self.0.lock().release(uid);
    }
}

impl Held {
    fn give(&mut self, uid: &str, address: Ipv4Addr) {
        self.of_pods.insert(uid.to_owned(), address);
        self.taken.insert(address);
    }

    fn release(&mut self, uid: &str) {
        if let Some(address) = self.of_pods.remove(uid) {
            self.taken.remove(&address);
        }
    }
}

/// Where the search for a pod's address starts: FNV-1a of its uid.
fn spread(uid: &str) -> u32 {
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u32::try_from(hash % u64::from(ALL)).unwrap_or_default()
}

fn nth(number: u32) -> Ipv4Addr {
    let host = number % HOSTS + 1;
    let net = number / HOSTS % NETS;
    let block = number / HOSTS / NETS + FIRST_BLOCK;
    Ipv4Addr::from((127 << 24) | (block << 16) | (net << 8) | host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_has_its_own_address_and_keeps_it() {
        let addresses = Addresses::default();
        let uids: Vec<String> = (0..5_000).map(|number| format!("pod-{number}")).collect();
        let given: Vec<Ipv4Addr> = uids.iter().map(|uid| addresses.take(uid)).collect();
        let distinct: BTreeSet<_> = given.iter().collect();
        assert_eq!(distinct.len(), given.len());
        for (uid, address) in uids.iter().zip(&given) {
            assert_eq!(addresses.take(uid), *address);
            assert!(address.is_loopback());
            assert_ne!(address.octets()[1], 0, "{address} is the machine's");
        }
    }

    #[test]
    fn the_address_follows_from_the_uid_until_somebody_else_holds_it() {
        let (before, after) = (Addresses::default(), Addresses::default());
        let usual = before.take("a");
        after.keep("b", usual);
        let other = after.take("a");
        assert_ne!(other, usual);
        after.release("a");
        after.release("b");
        assert_eq!(after.take("a"), usual);
    }

    #[test]
    fn an_address_kept_over_a_restart_replaces_the_one_that_was_given() {
        let addresses = Addresses::default();
        let given = addresses.take("a");
        let kept = Ipv4Addr::new(127, 9, 9, 9);
        addresses.keep("a", kept);
        assert_eq!(addresses.take("a"), kept);
        addresses.release("a");
        assert_eq!(addresses.take("a"), given);
    }

    #[test]
    fn the_block_is_used_from_end_to_end() {
        assert_eq!(nth(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(nth(ALL - 1), Ipv4Addr::new(127, 254, 255, 254));
    }
}
