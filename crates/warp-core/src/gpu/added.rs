//! Models an administrator adds to the table, or corrects in it. A row that cannot be is refused with the reason; those
//! before and after it hold.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::catalogue::{MODELS, Model, named_among, names, partition, telling, words};
use super::node::{self, NodeGpus};
use super::{Architecture, Vendor};

/// Most memory of one device that is believed.
const MOST_GIB: u32 = 4096;
/// Most devices one card shows up as.
const MOST_DEVICES: u32 = 16;
/// Longest name: it is shown in tables and written into labels.
const LONGEST: usize = 63;

/// One model as an administrator writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name that is printed. That of a model of the table corrects it: its other names stay.
    pub name: String,
    pub vendor: Vendor,
    /// Memory of one device.
    pub memory_gib: u32,
    /// Devices one card shows up as.
    pub devices_per_card: u32,
    /// Other names, as people and labels write them.
    pub aliases: Vec<String>,
    /// What it can compute with; unknown: nothing is refused.
    pub architecture: Option<Architecture>,
}

/// The models that are known: those of the table, and those that were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    added: Vec<&'static Model>,
}

impl Catalogue {
    /// Adds one model, or says why that cannot be.
    pub fn add(&mut self, row: &Row) -> Result<(), String> {
        if self.added.iter().any(|model| model.name == row.name) {
            return Err("it is there twice".to_owned());
        }
        let corrected = MODELS.iter().find(|model| model.name == row.name);
        if let Some(known) = corrected.filter(|known| known.vendor != row.vendor) {
            return Err(format!(
                "its vendor is {}, not {}",
                known.vendor, row.vendor
            ));
        }
        if !(1..=MOST_GIB).contains(&row.memory_gib) {
            return Err(format!("memory must be 1Gi to {MOST_GIB}Gi for one device"));
        }
        if !(1..=MOST_DEVICES).contains(&row.devices_per_card) {
            return Err(format!("devicesPerCard must be 1 to {MOST_DEVICES}"));
        }
        if let Some(other) = row.architecture.filter(|one| one.vendor() != row.vendor) {
            let (of, vendor) = (other.vendor(), row.vendor);
            return Err(format!(
                "architecture {} is {of}'s, not {vendor}'s",
                other.as_str()
            ));
        }
        for text in std::iter::once(&row.name).chain(&row.aliases) {
            self.check_name(text, &row.name)?;
        }
        self.added.push(kept(row, corrected));
        Ok(())
    }

    /// Whether a text can name this model and no other.
    fn check_name(&self, text: &str, model: &str) -> Result<(), String> {
        let words = words(text);
        let tells = telling(&words);
        let letters = |word: &&str| word.chars().any(|one| one.is_ascii_alphabetic());
        if !tells.iter().any(letters) || text.len() > LONGEST {
            return Err(format!(
                "'{text}' is no name: it needs a word with a letter that is not a vendor's, and at most {LONGEST} characters"
            ));
        }
        if let Some(part) = partition(text) {
            return Err(format!("'{text}' names a part of a GPU ({part})"));
        }
        let own: Vec<&str> = words.iter().map(String::as_str).collect();
        let other = self.models().find(|other| {
            other.name != model
                && (names(&super::catalogue::words(other.name), &own)
                    || self.named(text).contains(other))
        });
        match other {
            Some(other) => Err(format!("'{text}' is a name of {} already", other.name)),
            None => Ok(()),
        }
    }

    /// Every model; one that was corrected once.
    pub fn models(&self) -> impl Iterator<Item = &'static Model> + Clone + use<'_> {
        let corrected = |model: &&Model| self.added.iter().any(|added| added.name == model.name);
        let table = MODELS.iter().filter(move |model| !corrected(model));
        table.chain(self.added.iter().copied())
    }

    /// The models a name stands for: see [`super::named`].
    pub fn named(&self, text: &str) -> Vec<&'static Model> {
        named_among(self.models(), text)
    }

    /// Reads a node's labels and its allocatable counts by resource name.
    pub fn read(
        &self,
        labels: &BTreeMap<String, String>,
        allocatable: &BTreeMap<String, u64>,
    ) -> NodeGpus {
        node::read_by(self, labels, allocatable)
    }
}

/// Models are compared and passed on by reference everywhere and live as long as the process. What is read again is found
/// here, so that only a row nobody has written before takes memory.
fn kept(row: &Row, corrected: Option<&Model>) -> &'static Model {
    static KEPT: Mutex<Vec<(Row, &'static Model)>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, model)) = kept.iter().find(|(known, _)| known == row) {
        return model;
    }
    let text = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let sequences = std::iter::once(&row.name).chain(&row.aliases).map(|name| {
        let words: Vec<&'static str> = words(name).into_iter().map(text).collect();
        let sequence: &'static [&'static str] = Vec::leak(words);
        sequence
    });
    let known = corrected.map_or(&[][..], |model| model.words);
    let sequences: Vec<&'static [&'static str]> = known.iter().copied().chain(sequences).collect();
    let model: &'static Model = Box::leak(Box::new(Model {
        name: text(row.name.clone()),
        vendor: row.vendor,
        memory_gib: row.memory_gib,
        devices_per_card: row.devices_per_card,
        architecture: row.architecture,
        words: Vec::leak(sequences),
        variant: corrected.is_some_and(|model| model.variant),
    }));
    kept.push((row.clone(), model));
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, aliases: &[&str]) -> Row {
        Row {
            name: name.to_owned(),
            vendor: Vendor::Amd,
            memory_gib: 432,
            devices_per_card: 1,
            aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
            architecture: Some(Architecture::Cdna4),
        }
    }

    fn found(catalogue: &Catalogue, text: &str) -> Vec<&'static str> {
        let models = catalogue.named(text);
        models.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn an_added_model_is_found_by_all_its_names_and_read_from_labels() {
        let mut catalogue = Catalogue::default();
        catalogue
            .add(&row("MI990X", &["Instinct Next", "mi990"]))
            .unwrap();
        for text in [
            "MI990X",
            "AMD_Instinct_MI990X_OAM",
            "amd-mi990",
            "instinct-next",
        ] {
            assert_eq!(found(&catalogue, text), ["MI990X"], "{text}");
            assert_eq!(found(&Catalogue::default(), text), [""; 0], "{text}");
        }
        let labels = [("amd.com/gpu.product-name", "AMD_Instinct_MI990X_OAM")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let counts = BTreeMap::from([("amd.com/gpu".to_owned(), 8)]);
        let devices = catalogue.read(&labels.into(), &counts).devices;
        assert_eq!(devices[0].models[0].name, "MI990X");
        assert_eq!(devices[0].memory_mib, Some(432 * 1024));
        assert_eq!(found(&catalogue, "MI300X"), ["MI300X"], "the table holds");
    }

    #[test]
    fn a_row_of_a_known_name_corrects_the_table_and_keeps_its_names() {
        let mut catalogue = Catalogue::default();
        let mut corrected = row("MI300X", &["Aqua Vanjaram"]);
        corrected.memory_gib = 191;
        catalogue.add(&corrected).unwrap();
        for text in ["AMD_Instinct_MI300X_OAM", "aqua-vanjaram"] {
            let models = catalogue.named(text);
            assert_eq!((models.len(), models[0].memory_gib), (1, 191), "{text}");
        }
        assert_eq!(catalogue.models().count(), MODELS.len());
    }

    #[test]
    fn a_row_that_cannot_be_is_refused_and_the_others_hold() {
        let mut catalogue = Catalogue::default();
        catalogue.add(&row("MI991X", &[])).unwrap();
        let nvidia = |name: &str| Row {
            vendor: Vendor::Nvidia,
            architecture: None,
            ..row(name, &[])
        };
        let cases = [
            (row("MI991X", &[]), "twice"),
            (
                row("MI992X", &["MI300X"]),
                "'MI300X' is a name of MI300X already",
            ),
            (row("MI992X", &["mi991x"]), "is a name of MI991X already"),
            (row("MI992X", &["PRO"]), "'PRO' is a name of"),
            (row("MI992X", &["AMD Instinct"]), "is no name"),
            (row("MI992X", &["80"]), "is no name"),
            (row("MI992X-CPX", &[]), "a part of a GPU"),
            (row("", &[]), "is no name"),
            (nvidia("MI300X"), "its vendor is amd, not nvidia"),
            (
                Row {
                    memory_gib: 0,
                    ..row("MI992X", &[])
                },
                "memory must be",
            ),
            (
                Row {
                    devices_per_card: 0,
                    ..row("MI992X", &[])
                },
                "devicesPerCard",
            ),
            (
                Row {
                    architecture: Some(Architecture::Hopper),
                    ..row("MI992X", &[])
                },
                "architecture hopper is nvidia's, not amd's",
            ),
        ];
        for (row, says) in cases {
            let problem = catalogue.add(&row).unwrap_err();
            assert!(problem.contains(says), "{row:?}: {problem}");
        }
        catalogue.add(&row("MI992X", &[])).unwrap();
        assert_eq!(found(&catalogue, "mi992x"), ["MI992X"]);
    }

    #[test]
    fn a_row_that_is_read_again_is_the_same_model() {
        let read = || {
            let mut catalogue = Catalogue::default();
            catalogue.add(&row("MI993X", &["again"])).unwrap();
            catalogue
        };
        let (one, other) = (read(), read());
        assert!(std::ptr::eq(one.named("again")[0], other.named("again")[0]));
        assert_eq!(one, other);
    }
}
