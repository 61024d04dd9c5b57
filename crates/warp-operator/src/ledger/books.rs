//! The ledger kept from pass to pass: what changes is noted as it is heard and entered at the next look, so that a pass
//! costs what has changed and not what there is. Tests and debug builds compare it with one built from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;
use warp_core::fleet::{Fleet, Work};
use warp_runtime::cache::{Cache, Key};

use super::{
    Ledger, Promise, Reading, Storage, assemble, node, node_matters, pod_matters, pod_work,
    promised_work,
};

/// What the ledger is made from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) namespaces: Cache<Namespace>,
}

/// What has been heard and not entered.
#[derive(Debug, Default)]
struct Noted {
    nodes: BTreeSet<Key>,
    pods: BTreeSet<Key>,
    namespaces: bool,
    /// So much that everything is read anew: a replica that does not act hears of pods without end.
    everything: bool,
}

/// Objects noted one by one.
const MOST_NOTED: usize = 16_384;

impl Noted {
    fn bound(&mut self) {
        if self.nodes.len() + self.pods.len() > MOST_NOTED {
            *self = Self {
                namespaces: true,
                everything: true,
                ..Self::default()
            };
        }
    }
}

/// The ledger and what is known to be entered in it.
#[derive(Debug)]
pub(crate) struct Books {
    sources: Sources,
    noted: Arc<Mutex<Noted>>,
    reading: Reading,
    ledger: Ledger,
    /// The work each pod is entered as.
    pods: BTreeMap<Key, Arc<str>>,
    promises: BTreeMap<String, Promise>,
    namespaces: BTreeSet<String>,
    /// Work on nodes that are not there, by node: it holds nothing until they are.
    homeless: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Work>>,
    /// Entered for the decisions of one pass only.
    tentative: Vec<Arc<str>>,
    /// Grows with every change: what was decided in an older one may be decided otherwise now.
    epoch: u64,
}

impl Books {
    pub(crate) fn new(sources: Sources) -> Self {
        let noted = Arc::<Mutex<Noted>>::default();
        let (heard, all) = (Arc::clone(&noted), &sources);
        all.nodes.listen(move |old, new| {
            if node_matters(old, new) {
                let key = old.or(new).map(Key::of);
                let mut noted = heard.lock();
                noted.nodes.extend(key);
                noted.bound();
            }
        });
        let heard = Arc::clone(&noted);
        all.pods.listen(move |old, new| {
            if pod_matters(old, new) {
                let key = old.or(new).map(Key::of);
                let mut noted = heard.lock();
                noted.pods.extend(key);
                noted.bound();
            }
        });
        let heard = Arc::clone(&noted);
        all.namespaces
            .listen(move |_, _| heard.lock().namespaces = true);
        Self {
            sources,
            noted,
            reading: Reading::default(),
            ledger: Ledger::default(),
            pods: BTreeMap::new(),
            promises: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            homeless: BTreeMap::new(),
            tentative: Vec::new(),
            epoch: 0,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The ledger, to enter decisions into; each is to be told with [`Books::entered`].
    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// A decision of this pass was entered: what is decided after it is decided on another state.
    pub(crate) fn entered(&mut self, work: Arc<str>) {
        self.tentative.push(work);
        self.epoch += 1;
    }

    /// Takes the decisions of a pass out again: what was carried out comes back as a promise.
    pub(crate) fn settle(&mut self) {
        for work in std::mem::take(&mut self.tentative) {
            self.ledger.fleet.release(&work);
            self.epoch += 1;
        }
    }

    /// Volumes changed; claims on them are read anew.
    pub(crate) fn set_storage(&mut self, storage: Storage) {
        self.ledger.storage = storage;
        self.epoch += 1;
    }

    /// Nodes are read otherwise: every one is read anew.
    pub(crate) fn set_reading(&mut self, reading: Reading) {
        if self.reading != reading {
            self.reading = reading;
            let mut noted = self.noted.lock();
            (noted.everything, noted.namespaces) = (true, true);
        }
    }

    /// Something that decisions depend on and the ledger does not hold has changed.
    pub(crate) fn outdated(&mut self) {
        self.epoch += 1;
    }

    /// Enters what has been heard.
    pub(crate) fn catch_up(&mut self, promises: &[Promise]) {
        self.settle();
        self.enter_noted();
        self.enter_promises(promises);
        debug_assert!(
            self.agrees(promises),
            "the kept ledger differs from one built from nothing"
        );
    }

    fn enter_noted(&mut self) {
        let Noted {
            nodes,
            pods,
            namespaces,
            everything,
        } = std::mem::take(&mut *self.noted.lock());
        self.epoch += u64::from(!nodes.is_empty() || !pods.is_empty() || namespaces);
        if everything {
            self.begin_again();
        }
        for key in nodes {
            match self.sources.nodes.get(&key) {
                Some(node) => self.set_node(&node),
                None => self.remove_node(&key.name),
            }
        }
        for key in pods {
            if let Some(work) = self.pods.remove(&key) {
                self.release(&work);
            }
            if let Some(pod) = self.sources.pods.get(&key) {
                self.enter_pod(key, &pod);
            }
        }
        if namespaces {
            self.enter_namespaces();
        }
    }

    fn enter_namespaces(&mut self) {
        let all = self.sources.namespaces.all();
        let names: BTreeSet<String> = all.iter().map(|found| found.name_any()).collect();
        if !self.namespaces.is_subset(&names) {
            self.begin_again();
        }
        for namespace in &all {
            self.ledger.set_namespace(namespace);
        }
        self.namespaces = names;
    }

    /// Forgets everything and enters what there is. The fleet cannot forget a namespace alone.
    fn begin_again(&mut self) {
        self.ledger.fleet = Fleet::new();
        self.ledger.gpus.clear();
        self.pods.clear();
        self.promises.clear();
        self.homeless.clear();
        for node in self.sources.nodes.all() {
            self.set_node(&node);
        }
        for pod in self.sources.pods.all() {
            self.enter_pod(Key::of(&*pod), &pod);
        }
    }

    fn enter_pod(&mut self, key: Key, pod: &Pod) {
        if let Some(work) = pod_work(pod) {
            self.pods.insert(key, Arc::clone(&work.id));
            self.bind(work);
        }
    }

    fn enter_promises(&mut self, promises: &[Promise]) {
        let wanted: BTreeMap<&str, &Promise> = promises
            .iter()
            .map(|promise| (promise.owner.as_str(), promise))
            .collect();
        let kept =
            |owner: &str, had: &Promise| wanted.get(owner).is_some_and(|promise| **promise == *had);
        let gone: Vec<String> = self
            .promises
            .iter()
            .filter(|(owner, had)| !kept(owner, had))
            .map(|(owner, _)| owner.clone())
            .collect();
        for owner in gone {
            self.promises.remove(&owner);
            self.release(&owner);
            self.epoch += 1;
        }
        for promise in promises {
            if self.promises.contains_key(&promise.owner) {
                continue;
            }
            self.promises.insert(promise.owner.clone(), promise.clone());
            self.epoch += 1;
            if let Some(work) = promised_work(promise) {
                self.bind(work);
            }
        }
    }

    fn set_node(&mut self, found: &Node) {
        let (described, devices) =
            node::translate(found, &self.reading.catalogue, &self.reading.levels);
        let name = Arc::clone(&described.name);
        self.ledger.gpus.insert(name.to_string(), devices);
        self.ledger.fleet.set_node(described);
        for (_, work) in self.homeless.remove(&name).into_iter().flatten() {
            self.bind(work);
        }
    }

    fn remove_node(&mut self, name: &str) {
        self.ledger.gpus.remove(name);
        if let Some((node, works)) = self.ledger.fleet.remove_node(name) {
            let left = self.homeless.entry(Arc::clone(&node.name)).or_default();
            left.extend(works.into_iter().map(|work| (Arc::clone(&work.id), work)));
        }
    }

    /// A pod on a node that is not there holds nothing that could be given away.
    fn bind(&mut self, work: Work) {
        if self.ledger.fleet.find(&work.node).is_none() {
            let left = self.homeless.entry(Arc::clone(&work.node)).or_default();
            left.insert(Arc::clone(&work.id), work);
        } else if let Err(error) = self.ledger.fleet.bind(work) {
            tracing::debug!(error = %error, "not counted");
        }
    }

    fn release(&mut self, work: &str) {
        if self.ledger.fleet.release(work).is_none() {
            for left in self.homeless.values_mut() {
                left.remove(work);
            }
            self.homeless.retain(|_, left| !left.is_empty());
        }
    }

    /// Whether the kept ledger is the one that would be built from nothing. What is heard while this looks is entered
    /// first; what stays different is a defect.
    fn agrees(&mut self, promises: &[Promise]) -> bool {
        for _ in 0..100 {
            let (nodes, pods) = (self.sources.nodes.all(), self.sources.pods.all());
            let mut built = assemble(&self.reading, &nodes, &pods, promises);
            for namespace in self.sources.namespaces.all() {
                built.set_namespace(&namespace);
            }
            if built.fleet == self.ledger.fleet && built.gpus == self.ledger.gpus {
                return true;
            }
            std::thread::yield_now();
            self.enter_noted();
            self.enter_promises(promises);
        }
        false
    }
}

#[cfg(test)]
mod tests;
