//! Makes room for a pod that fits nowhere, at the cost of pods of lower priority.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use warp_core::fleet::{Request, WorkState};

use super::preempt::{self, Budgets, Chosen};
use super::verdict::Verdict;
use super::{NAME, Scheduler, status_patch};
use crate::controllers::plan::{Action, Note, Plan, Removal, about};
use crate::controllers::{ownership, pods};
use crate::informer::Key;

impl Scheduler {
    /// The node to empty for a pod; otherwise why none.
    pub(super) fn preempt(
        &mut self,
        key: &Key,
        pod: &Pod,
        request: &Request,
        verdict: &Verdict,
    ) -> Result<Chosen, String> {
        if pod
            .spec
            .as_ref()
            .and_then(|spec| spec.preemption_policy.as_deref())
            == Some("Never")
        {
            return Err("not eligible due to preemptionPolicy=Never.".to_owned());
        }
        let nominated = self
            .nominees
            .get(key)
            .and_then(|nominee| self.fleet.find(&nominee.work.node));
        let ending = nominated.is_some_and(|node| {
            self.fleet.works_on(node).any(|work| {
                work.state == WorkState::Terminating && work.request.priority < request.priority
            })
        });
        if ending {
            return Err("not eligible due to a terminating pod on the nominated node.".to_owned());
        }
        let budgets = self.budgets(request.priority);
        preempt::choose(&mut self.fleet, request, &verdict.candidates, &budgets)
            .ok_or_else(|| verdict.no_victims())
    }

    fn budgets(&self, priority: i32) -> Budgets {
        let all = self.shared.caches.budgets.all();
        let mut budgets = Budgets {
            allowed: all
                .iter()
                .map(|budget| {
                    budget
                        .status
                        .as_ref()
                        .map_or(0, |status| status.disruptions_allowed)
                })
                .collect(),
            covering: BTreeMap::new(),
        };
        if all.is_empty() {
            return budgets;
        }
        for (key, uid) in &self.bound {
            let lower = self
                .fleet
                .work(uid)
                .is_some_and(|work| work.request.priority < priority);
            let Some(pod) = self.shared.caches.pods.get(key).filter(|_| lower) else {
                continue;
            };
            let covering = all.iter().enumerate().filter(|(_, budget)| {
                let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                budget.metadata.namespace.as_deref() == Some(&*key.namespace)
                    && selector.is_some_and(|selector| {
                        ownership::selects(selector, pod.metadata.labels.as_ref())
                    })
            });
            let covering: Vec<usize> = covering.map(|(number, _)| number).collect();
            if !covering.is_empty() {
                budgets.covering.insert(uid.clone(), covering);
            }
        }
        budgets
    }

    pub(super) fn make_room(
        &mut self,
        key: &Key,
        pod: &Arc<Pod>,
        request: &Arc<Request>,
        verdict: &Verdict,
        chosen: &Chosen,
    ) {
        let gone: BTreeSet<Arc<str>> = chosen.victims.iter().map(|work| work.id.clone()).collect();
        let keys: Vec<Key> = self
            .bound
            .iter()
            .filter(|(_, uid)| gone.contains(*uid))
            .map(|(key, _)| key.clone())
            .collect();
        let mut plan = Plan::default();
        for victim in keys
            .iter()
            .filter_map(|key| self.shared.caches.pods.get(key))
        {
            if pods::is_terminating(&victim) {
                continue;
            }
            let status = json!({ "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": format!("{NAME}: preempting to accommodate a higher priority pod"),
                "lastProbeTime": null, "lastTransitionTime": Time(self.shared.now()),
            }] });
            plan.push(status_patch(&victim, &status));
            plan.delete(&*victim, Removal::default(), None);
            let message = format!(
                "Preempted by pod {} on node {}",
                pod.metadata.uid.as_deref().unwrap_or_default(),
                chosen.node
            );
            plan.push(Action::Note(Note {
                about: about(&*victim),
                warning: false,
                reason: "Preempted".to_owned(),
                action: None,
                message,
            }));
        }
        self.write(key, plan);
        self.nominate(key, pod, request, &chosen.node);
        let message = verdict.message(&verdict.no_victims());
        self.refuse(key, pod, message, Some(&chosen.node));
    }
}
