//! Amounts of CPU, memory and named resources, in exact integers, and Kubernetes quantities as text.

mod quantity;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use quantity::{Quantity, QuantityError};

/// What a pod asks for or a node offers. Amounts are signed: a node that lost capacity under running
/// pods has a negative free amount, and hiding that would over-commit it further.
///
/// In files it is what a Kubernetes manifest has: `{cpu: 500m, memory: 64Gi, nvidia.com/gpu: 8}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    /// Everything else by its Kubernetes name: `ephemeral-storage`, `nvidia.com/gpu`, `hugepages-2Mi`.
    pub extended: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    pub fn new(cpu_milli: i64, memory_bytes: i64) -> Self {
        Self {
            cpu_milli,
            memory_bytes,
            extended: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, amount: i64) -> Self {
        self.extended.insert(Arc::from(name), amount);
        self
    }

    pub fn extended(&self, name: &str) -> i64 {
        self.extended.get(name).copied().unwrap_or(0)
    }

    /// Reads one `requests` or `allocatable` entry: the name decides the unit (milli for CPU, whole
    /// units rounded up for the rest, as Kubernetes' own `Value()` does).
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), QuantityError> {
        let quantity = text.parse::<Quantity>()?;
        match name {
            "cpu" => self.cpu_milli = quantity.milli()?,
            "memory" => self.memory_bytes = quantity.value()?,
            _ => {
                self.extended.insert(Arc::from(name), quantity.value()?);
            }
        }
        Ok(())
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    fn combine(&mut self, other: &Self, op: fn(i64, i64) -> i64) {
        self.cpu_milli = op(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = op(self.memory_bytes, other.memory_bytes);
        for (name, &amount) in &other.extended {
            if let Some(mine) = self.extended.get_mut(name) {
                *mine = op(*mine, amount);
            } else {
                self.extended.insert(Arc::clone(name), op(0, amount));
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(i64),
    Decimal(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut resources = Self::default();
        for (name, amount) in BTreeMap::<String, Amount>::deserialize(deserializer)? {
            let text = match amount {
                Amount::Whole(number) => number.to_string(),
                Amount::Decimal(number) => number.to_string(),
                Amount::Text(text) => text,
            };
            resources
                .set(&name, &text)
                .map_err(|error| D::Error::custom(format_args!("{name}: {error}")))?;
        }
        Ok(resources)
    }
}

impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let cpu = [("cpu", format!("{}m", self.cpu_milli))];
        let memory = [("memory", self.memory_bytes.to_string())];
        let extended = self
            .extended
            .iter()
            .map(|(name, amount)| (&**name, amount.to_string()));
        serializer.collect_map(
            cpu.into_iter()
                .filter(|_| self.cpu_milli != 0)
                .chain(memory.into_iter().filter(|_| self.memory_bytes != 0))
                .chain(extended),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Resources;

    #[test]
    fn manifests_are_read_and_written_back() {
        let text = r#"{"cpu":"500m","memory":"1Gi","nvidia.com/gpu":8}"#;
        let read: Resources = serde_json::from_str(text).unwrap();
        assert_eq!(read, Resources::new(500, 1 << 30).with("nvidia.com/gpu", 8));
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<Resources>(&written).unwrap(), read);
    }

    #[test]
    fn a_bad_amount_names_the_resource() {
        let error = serde_json::from_str::<Resources>(r#"{"memory":"64GB"}"#).unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
    }
}
