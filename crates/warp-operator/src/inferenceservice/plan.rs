//! What a service should have and say. Pure and total.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use serde_json::Value;
use warp_api::inferenceservice::{ScalingBy, ServicePhase};
use warp_api::{InferenceService, InferenceServiceStatus, condition, reason};
use warp_core::rollout::Strategy;
use warp_runtime::cache::Key;
use warp_runtime::driver::later;
use warp_runtime::plan::{Action, Kind, Plan};
use warp_runtime::reconcile::{self, Reconcile};

use super::autoscaler;
use super::copies;
use super::group::{self, Tended};
use super::objects;
use super::observe::Seen;
use super::pools::{self, Judged, SETTLED};
use super::status;
use super::unplaced;
use super::wanted::{Refusal, Wanted, wanted};
use super::{InferenceServices, NAME};

/// How often a service that scales, waits or changes is looked at without being told to.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(15);
/// How often engines are asked where nothing follows from it but what is told.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How a Deployment replaces copies that are about to go.
const IN_PLACE: Strategy = Strategy {
    max_surge: 0,
    max_unavailable: 1,
};

pub(super) fn plan(service: &InferenceService, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    // Its children go with it.
    if service.meta().deletion_timestamp.is_some() {
        return plan;
    }
    let before = service.status.clone().unwrap_or_default();
    let wanted = wanted(service, seen, now);
    let mut tended = Tended::default();
    let after = match &wanted {
        Ok(wanted) => {
            children(&mut plan, service, seen, wanted);
            autoscaler::tell(&mut plan, service, seen);
            if wanted.nodes > 1 {
                let replaces = !wanted.pools.iter().all(Judged::is_too_large);
                let groups = (wanted.copies.wanted, replaces);
                tended = group::tend(&mut plan, service, seen, groups, now);
            }
            InferenceServiceStatus {
                groups: tended.groups.clone(),
                ..status::accepted(service, seen, wanted, &tended, &before, now)
            }
        }
        Err(refusal) => {
            let mut groups = before.groups.clone();
            if refusal.reason != reason::NAME_TAKEN {
                let fewer = shrink(&mut plan, service, seen);
                // What serves is kept serving.
                if let Some(copies) = group::current(seen) {
                    let copies = copies.min(fewer);
                    tended = group::tend(&mut plan, service, seen, (copies, false), now);
                    groups.clone_from(&tended.groups);
                }
            }
            InferenceServiceStatus {
                groups,
                ..status::refused(service, seen, refusal, &before, now)
            }
        }
    };
    let most = after.replicas.max(0);
    let placed = i32::try_from(copies::placed(&seen.pods, false)).unwrap_or(i32::MAX);
    let after = InferenceServiceStatus {
        placed_replicas: before.placed_replicas.max(placed).min(most),
        refused_nodes: unplaced::left_out(seen, &before, now),
        ..after
    };
    let believed = after.no_room_since.as_ref();
    let believed = believed.map(|since| later(since.0, SETTLED));
    if let Some(at) = believed.filter(|at| *at > now) {
        plan.look_again(at);
    }
    if let Ok(wanted) = &wanted {
        let given = wanted.given.iter();
        let times = given.flat_map(|given| [given.again, given.no_room_until]);
        for at in times.flatten().filter(|at| *at > now) {
            plan.look_again(at);
        }
    }
    unplaced::have_placed(&mut plan, seen, now);
    plan.why = after
        .message
        .clone()
        .unwrap_or_else(|| format!("{NAME} is up to date"));
    let waits =
        after.phase != Some(ServicePhase::Ready) && after.phase != Some(ServicePhase::Stopped);
    let unknown = seen.asks && after.adapters.iter().any(|adapter| !adapter.ready);
    if waits || unknown || service.spec.scaling.is_some() {
        plan.look_again(now.saturating_add(LOOK_AGAIN).unwrap_or(now));
    } else if seen.asks && after.ready_replicas > 0 {
        plan.look_again(now.saturating_add(ASK_AGAIN).unwrap_or(now));
    }
    plan.own_status(
        service,
        InferenceServices::MANAGER,
        service.status.as_ref().map(own).unwrap_or_default(),
        own(&after),
    );
    // After the status: what was not written is not told either.
    status::events(&mut plan, service, &before, &after);
    tended.carry_out(&mut plan);
    unplaced::give_back(&mut plan, service, seen);
    plan
}

/// What a service says when the API server does not take something that was made for it: what serves goes on, with fewer
/// copies where fewer are wanted.
pub(super) fn rejected(
    service: &InferenceService,
    seen: &Seen,
    refused: &reconcile::Refusal,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let before = service.status.clone().unwrap_or_default();
    let refusal = Refusal {
        reason: reason::OBJECT_REJECTED,
        message: format!(
            "the API server does not take the {} {}: {}",
            refused.kind, refused.name, refused.words
        ),
        waits: refused.forbidden,
    };
    shrink(&mut plan, service, seen);
    let mut after = InferenceServiceStatus {
        placed_replicas: before.placed_replicas,
        refused_nodes: before.refused_nodes.clone(),
        ..status::refused(service, seen, &refusal, &before, now)
    };
    if let Some(state) = autoscaler::not_told(refused, &refusal.message) {
        let generation = service.meta().generation.unwrap_or_default();
        let told = condition::next(&before.conditions, &[state], generation, now);
        let told = condition::find(&told, condition::HANDED_OVER);
        let mut conditions = after.conditions.iter_mut();
        let said = conditions.find(|found| found.type_ == condition::HANDED_OVER);
        if let Some((said, told)) = said.zip(told) {
            said.clone_from(told);
        }
    }
    plan.why.clone_from(&refusal.message);
    let known = service.status.as_ref().map(own).unwrap_or_default();
    plan.own_status(service, InferenceServices::MANAGER, known, own(&after));
    status::events(&mut plan, service, &before, &after);
    plan
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &InferenceServiceStatus) -> Value {
    let mut status = status.clone();
    let ours = [
        condition::READY,
        condition::ACCEPTED,
        condition::HANDED_OVER,
    ];
    status
        .conditions
        .retain(|found| ours.contains(&found.type_.as_str()));
    serde_json::to_value(status).unwrap_or_default()
}

fn children(plan: &mut Plan, service: &InferenceService, seen: &Seen, wanted: &Wanted) {
    let groups = if wanted.nodes > 1 {
        wanted.copies.wanted
    } else {
        0
    };
    for set in group::surplus(service, seen, groups) {
        plan.delete_version(&**set);
        plan.because("its copy is not wanted");
    }
    if wanted.nodes > 1 {
        of_groups(plan, service, seen, wanted);
        return;
    }
    apply(plan, Kind::of::<Service>(), objects::service(service, 1));
    for (one, given) in wanted.pools.iter().zip(&wanted.given) {
        if let Some(rendered) = &one.rendered {
            let object = objects::deployment(
                service,
                one.pool.name.as_deref(),
                rendered,
                given.copies,
                given.strategy,
            );
            apply(plan, Kind::of::<Deployment>(), object);
        }
    }
    for (found, copies) in pools::retire(service, seen, &wanted.pools, &wanted.given) {
        keep(plan, service, &found, copies);
    }
}

/// What copies that span nodes are made of.
fn of_groups(plan: &mut Plan, service: &InferenceService, seen: &Seen, wanted: &Wanted) {
    for deployment in pools::deployments(seen) {
        if deployment.meta().deletion_timestamp.is_none() {
            plan.delete_version(&**deployment);
            plan.because("copies span nodes");
        }
    }
    let front = objects::service(service, wanted.nodes);
    for object in [group::names_service(service), front] {
        apply(plan, Kind::of::<Service>(), object);
    }
    let rendered = wanted.pools.iter().find_map(|one| one.rendered.as_ref());
    for copy in 0..rendered.map_or(0, |_| wanted.copies.wanted) {
        for set in rendered
            .into_iter()
            .flat_map(|rendered| group::sets(service, rendered, copy))
        {
            apply(plan, Kind::of::<StatefulSet>(), set);
        }
    }
}

fn apply(plan: &mut Plan, kind: Kind, object: Value) {
    let meta = &object["metadata"];
    let part = |name: &str| meta[name].as_str().unwrap_or_default();
    let key = Key::new(part("namespace"), part("name"));
    plan.push(Action::Apply {
        kind,
        key,
        manager: InferenceServices::MANAGER,
        object,
    });
}

/// Leaves a Deployment of no pool so many of its copies.
fn keep(plan: &mut Plan, service: &InferenceService, found: &Deployment, copies: u32) {
    if found.meta().deletion_timestamp.is_some() {
        return;
    }
    let rendered = objects::rendering_of(found).filter(|_| copies > 0);
    let Some(rendered) = rendered else {
        plan.delete_version(found);
        plan.because("its copies are not wanted");
        return;
    };
    let object = objects::deployment(service, pools::said(found), &rendered, copies, IN_PLACE);
    apply(plan, Kind::of::<Deployment>(), object);
}

/// Fewer copies take nothing that could be missing: what cannot be carried out otherwise is made smaller all the same, from
/// what its copies are made from now. Says how many copies there are to be at most.
fn shrink(plan: &mut Plan, service: &InferenceService, seen: &Seen) -> u32 {
    let spec = &service.spec;
    let most = match &spec.scaling {
        None => spec.replicas,
        Some(scaling) if scaling.by == ScalingBy::Warp => scaling.max,
        Some(scaling) => spec.replicas.min(scaling.max),
    };
    let most = pools::positive(most);
    for set in group::surplus(service, seen, most) {
        plan.delete_version(&**set);
        plan.because("its copy is not wanted");
    }
    for (found, kept) in pools::fewer(seen, most) {
        if let Some(rendered) = objects::rendering_of(found) {
            let strategy = pools::strategy_of(found).unwrap_or(IN_PLACE);
            let pool = pools::said(&**found);
            let object = objects::deployment(service, pool, &rendered, kept, strategy);
            apply(plan, Kind::of::<Deployment>(), object);
        }
    }
    most
}
