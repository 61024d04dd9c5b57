//! The ledger kept from pass to pass: what changes is noted as it is heard and entered at the next look, so that a pass
//! costs what has changed and not what there is. Tests and debug builds compare it with one built from nothing at every
//! look, release builds when they are told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;
use warp_core::fleet::{Fleet, Work};
use warp_core::schedule::{Ask, Mix};
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
    /// Grows with every change of what nodes, namespaces and volumes are, whoever uses them.
    structure: u64,
    /// What the work in the ledger asked for, of so many kinds of GPU.
    mix: Mix,
    kinds: usize,
    /// Grows with every change of the work that keeps other work off its node; 0 while there was none.
    repelling: u64,
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
            structure: 0,
            mix: Mix::default(),
            kinds: 0,
            repelling: 0,
        }
    }

    /// Another when work that keeps other work off its node has come or gone, or namespaces have changed; 0 while there
    /// was none.
    pub(crate) fn repelling(&self) -> u64 {
        if self.repelling == 0 {
            return 0;
        }
        self.repelling + self.structure
    }

    /// Notes work that comes or goes.
    fn note(&mut self, work: &Work) {
        let repels = !work.request.constraints.pod_anti_affinity.is_empty();
        self.repelling += u64::from(repels);
    }

    /// Grows with every change of what a request means.
    pub(crate) fn structure(&self) -> u64 {
        self.structure
    }

    /// What the work in the ledger asked for.
    pub(crate) fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Everything that is promised.
    pub(crate) fn promises(&self) -> impl Iterator<Item = &Promise> {
        self.promises.values()
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
        self.structure += 1;
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

    /// Enters what has been heard, and what is promised now: all of it.
    #[cfg(test)]
    pub(crate) fn catch_up(&mut self, promises: &[Promise]) {
        let now: BTreeSet<&str> = promises.iter().map(|one| one.owner.as_str()).collect();
        let gone = self
            .promises
            .keys()
            .filter(|had| !now.contains(had.as_str()));
        let mut changes: Vec<_> = gone.map(|owner| (owner.clone(), None)).collect();
        let there = promises.iter();
        changes.extend(there.map(|one| (one.owner.clone(), Some(one.clone()))));
        self.catch_up_with(changes);
        assert!(
            self.agrees(),
            "the kept ledger differs from one built from nothing"
        );
    }

    /// Enters what has been heard, and what has changed in what owners are promised.
    pub(crate) fn catch_up_with(
        &mut self,
        promises: impl IntoIterator<Item = (String, Option<Promise>)>,
    ) {
        self.settle();
        self.enter_noted();
        for (owner, promise) in promises {
            self.enter_promise(owner, promise);
        }
        self.count_kinds();
    }

    /// Enters what has changed in what owners are promised, and nothing else.
    pub(crate) fn promised(&mut self, changes: Vec<(String, Option<Promise>)>) {
        for (owner, promise) in changes {
            self.enter_promise(owner, promise);
        }
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
        self.structure += 1;
    }

    /// Forgets everything and enters what there is. The fleet cannot forget a namespace alone.
    fn begin_again(&mut self) {
        self.ledger.fleet = Fleet::new();
        self.ledger.gpus.clear();
        self.pods.clear();
        self.homeless.clear();
        self.mix = Mix::default();
        self.kinds = 0;
        for node in self.sources.nodes.all() {
            self.set_node(&node);
        }
        for pod in self.sources.pods.all() {
            self.enter_pod(Key::of(&*pod), &pod);
        }
        let promised: Vec<Work> = self.promises.values().filter_map(promised_work).collect();
        for work in promised {
            self.bind(work);
        }
    }

    fn enter_pod(&mut self, key: Key, pod: &Pod) {
        if let Some(work) = pod_work(pod) {
            self.pods.insert(key, Arc::clone(&work.id));
            self.bind(work);
        }
    }

    fn enter_promise(&mut self, owner: String, promise: Option<Promise>) {
        if self.promises.get(&owner) == promise.as_ref() {
            return;
        }
        self.epoch += 1;
        if self.promises.remove(&owner).is_some() {
            self.release(&owner);
        }
        if let Some(promise) = promise {
            if let Some(work) = promised_work(&promise) {
                self.bind(work);
            }
            self.promises.insert(owner, promise);
        }
    }

    /// What a request accepts depends on the kinds of GPU there are.
    fn count_kinds(&mut self) {
        let fleet = &self.ledger.fleet;
        let kinds = fleet.kinds().count();
        if self.kinds != kinds {
            self.kinds = kinds;
            self.mix = mix_of(fleet);
        }
    }

    fn set_node(&mut self, found: &Node) {
        let (described, devices) =
            node::translate(found, &self.reading.catalogue, &self.reading.levels);
        let name = Arc::clone(&described.name);
        self.structure += 1;
        self.ledger.gpus.insert(name.to_string(), devices);
        self.ledger.fleet.set_node(described);
        for (_, work) in self.homeless.remove(&name).into_iter().flatten() {
            self.bind(work);
        }
    }

    fn remove_node(&mut self, name: &str) {
        self.structure += 1;
        self.ledger.gpus.remove(name);
        if let Some((node, works)) = self.ledger.fleet.remove_node(name) {
            for work in &works {
                self.note(work);
                self.mix.unsee(&Ask::new(&self.ledger.fleet, &work.request));
            }
            let left = self.homeless.entry(Arc::clone(&node.name)).or_default();
            left.extend(works.into_iter().map(|work| (Arc::clone(&work.id), work)));
        }
    }

    /// A pod on a node that is not there holds nothing that could be given away.
    fn bind(&mut self, work: Work) {
        if self.ledger.fleet.find(&work.node).is_none() {
            let left = self.homeless.entry(Arc::clone(&work.node)).or_default();
            left.insert(Arc::clone(&work.id), work);
            return;
        }
        self.note(&work);
        let request = Arc::clone(&work.request);
        match self.ledger.fleet.bind(work) {
            Ok(()) => self.mix.see(&Ask::new(&self.ledger.fleet, &request)),
            Err(error) => tracing::debug!(error = %error, "not counted"),
        }
    }

    fn release(&mut self, work: &str) {
        if let Some(work) = self.ledger.fleet.release(work) {
            self.note(&work);
            self.mix.unsee(&Ask::new(&self.ledger.fleet, &work.request));
        } else {
            for left in self.homeless.values_mut() {
                left.remove(work);
            }
            self.homeless.retain(|_, left| !left.is_empty());
        }
    }

    /// Whether the kept ledger is the one that would be built from nothing. What is heard while this looks is entered
    /// first; what stays different is a defect.
    pub(crate) fn agrees(&mut self) -> bool {
        for _ in 0..100 {
            let (nodes, pods) = (self.sources.nodes.all(), self.sources.pods.all());
            let mut built = assemble(&self.reading, &nodes, &pods, self.promises.values());
            for namespace in self.sources.namespaces.all() {
                built.set_namespace(&namespace);
            }
            if built.fleet == self.ledger.fleet
                && built.gpus == self.ledger.gpus
                && self.mix == mix_of(&self.ledger.fleet)
            {
                return true;
            }
            std::thread::yield_now();
            self.enter_noted();
            self.count_kinds();
        }
        false
    }

    /// Forgets the ledger and builds it from nothing, with these promises.
    pub(crate) fn rebuild(&mut self, promises: Vec<Promise>) {
        self.epoch += 1;
        self.structure += 1;
        *self.noted.lock() = Noted::default();
        let owned = promises.into_iter();
        self.promises = owned.map(|one| (one.owner.clone(), one)).collect();
        self.begin_again();
        self.enter_namespaces();
        self.count_kinds();
    }
}

/// What the work of a fleet asked for.
fn mix_of(fleet: &Fleet) -> Mix {
    let mut mix = Mix::default();
    for work in fleet.works() {
        mix.see(&Ask::new(fleet, &work.request));
    }
    mix
}

#[cfg(test)]
mod tests;
