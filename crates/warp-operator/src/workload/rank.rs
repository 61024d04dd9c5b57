//! Where a workload stands in the line: by its own `priority`, by the PriorityClass it names, or by its tenant's word. Pure.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use warp_api::GPUWorkload;
use warp_api::tenant::TenantDefaults;
use warp_api::workload::Priority;

/// What a PriorityClass says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    value: i32,
    /// Whether work of it may have others evicted.
    preempts: bool,
}

impl From<&PriorityClass> for Class {
    fn from(class: &PriorityClass) -> Self {
        Self {
            value: class.value,
            preempts: class.preemption_policy.as_deref() != Some("Never"),
        }
    }
}

/// What decides besides the workload itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// The PriorityClass it names, as far as that is there.
    pub(crate) class: Option<Class>,
    /// What its tenant says for work that does not.
    pub(crate) defaults: TenantDefaults,
}

impl Given {
    /// Whether running work may be evicted for work of higher priority.
    pub(crate) fn preemptible(self, workload: &GPUWorkload, priority: Priority) -> bool {
        let said = workload.spec.preemptible.or(self.defaults.preemptible);
        said.unwrap_or(priority == Priority::Low)
    }
}

/// Where a workload stands, and whether others may be evicted for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) priority: Priority,
    pub(crate) patient: bool,
}

impl From<Class> for Rank {
    fn from(class: Class) -> Self {
        Self {
            priority: Priority::of_class(class.value),
            patient: !class.preempts,
        }
    }
}

/// The PriorityClass that decides for a workload, if one does.
pub(crate) fn class_name(workload: &GPUWorkload) -> Option<&str> {
    let spec = &workload.spec;
    let pod = spec.pod_template.as_ref();
    let pod = pod.and_then(|template| template.spec.as_ref());
    let of_pod = pod.and_then(|pod| pod.priority_class_name.as_deref());
    // A priority that was asked for is the owner's own word; what was made before priority could be left out says normal.
    let own = spec.priority.is_some_and(|own| own != Priority::Normal);
    let of_pod = of_pod.filter(|name| !own && !name.is_empty());
    spec.priority_class_name.as_deref().or(of_pod)
}

/// Where a workload stands, by the class it names as far as that is there; the error says that it is not.
pub(crate) fn rank(workload: &GPUWorkload, given: Given) -> Result<Rank, String> {
    match (class_name(workload), given.class) {
        (None, _) => Ok(Rank {
            priority: (workload.spec.priority)
                .or(given.defaults.priority)
                .unwrap_or_default(),
            patient: false,
        }),
        (Some(_), Some(class)) => Ok(class.into()),
        (Some(name), None) => Err(format!(
            "the PriorityClass {name} does not exist; create it, or name another in spec.priorityClassName"
        )),
    }
}
