//! The end-to-end suite: what a user sees on a cluster, with the operator as a process of its own.
//!
//! Scenarios are written against a [`World`] and do not know what runs the cluster: every one of them
//! is played on a real control plane and on the embedded engine, and is a test of its own:
//! `real::place::the_cheapest_node_is_chosen_when_asked`. Those that leave the operator alone share a
//! cluster and run side by side, each in its own namespace; those that kill it, lose nodes or uninstall
//! have a cluster of their own. Each leaves the verbs that the operator used; the last test of an engine
//! compares all of them with the shipped role, when all were played.
//!
//! What the embedded engine does not have is asked for by name with [`World::has`], here and nowhere
//! else, and listed in `docs/reference/embedded.md`: there are no admission webhooks and no admission
//! policies.
//!
//! `cargo test -p warp-operator --test e2e -- embedded::place` plays those whose name contains that, and
//! `WARP_SCENARIOS=part-of-a-name,…` those whose name contains one of several.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "every function here is part of a test"
)]

mod autoscale;
mod chronicle;
mod clouds;
mod crash;
mod crowd;
mod delete;
mod estimate;
mod failure;
mod faulty;
mod gang;
mod hands;
#[path = "../it/walks/hostile/specs.rs"]
mod hostile;
mod input;
mod install;
#[path = "../it/invariants.rs"]
mod invariants;
mod joining;
mod leader;
mod loss;
mod modelcache;
mod operator;
mod others;
mod place;
mod programme;
mod queued;
mod rent;
mod retry;
mod role;
mod run;
mod security;
mod serve;
mod share;
mod stop;
mod tenant;
mod world;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use futures::future::BoxFuture;
use libtest_mimic::Arguments;
use warp_testkit::audit::Action;
use warp_testkit::{Builder, Engine, NodeShape};

use programme::Programme;
use world::World;

/// A scenario in a world whose operator runs.
type Scenario = (
    &'static str,
    fn(Arc<World>) -> BoxFuture<'static, Result<()>>,
);

macro_rules! scenarios {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((
            concat!(stringify!($module), "::", stringify!($name)),
            (|world| Box::pin(async move { $module::$name(&world).await }))
                as fn(Arc<World>) -> BoxFuture<'static, Result<()>>,
        )),*]
    };
}

/// Scenarios that share a cluster and an operator.
const SHARED: &[Scenario] = &scenarios![
    run::a_workload_runs_to_success,
    run::every_example_runs,
    run::volumes_are_mounted_as_asked,
    run::kubectl_shows_what_matters,
    place::a_gpu_model_asked_for_is_the_one_used,
    place::a_model_an_administrator_adds_is_known_at_once,
    place::every_term_of_the_users_affinity_is_pinned,
    place::the_cheapest_node_is_chosen_when_asked,
    place::providers_restrict_and_fall_back,
    place::providers_are_compared_and_limited_as_an_administrator_says,
    place::waiting_costs_no_retry_and_priority_orders_it,
    place::small_work_does_not_hold_wide_work_up,
    estimate::who_waits_is_told_when_it_starts_and_that_comes_true,
    place::work_of_higher_priority_takes_the_place_of_low_work,
    place::a_priority_class_decides_and_one_that_is_missing_is_said,
    stop::saved_work_is_known_and_resumed,
    place::a_volume_is_followed_to_the_node_it_can_be_reached_from,
    place::nodes_closed_by_hand_are_said_and_used_once_open,
    share::each_vendors_parts_are_given_as_asked,
    share::what_no_node_offers_is_told_with_what_is_offered,
    share::a_gpu_is_shared_until_it_is_full,
    gang::all_members_start_or_none,
    gang::what_ends_one_member_ends_all,
    gang::an_elastic_gang_starts_with_what_fits_and_fails_when_told,
    queued::jobs_and_workloads_wait_in_one_line,
    queued::pods_of_a_wide_job_start_together,
    queued::a_job_is_suspended_for_work_of_higher_priority,
    queued::what_is_not_held_is_told_and_not_stopped,
    queued::the_example_of_a_queued_job_runs,
    others::other_kinds_wait_are_placed_and_make_room,
    failure::a_failed_container_says_how,
    failure::a_container_that_cannot_start_says_why,
    failure::a_missing_claim_is_named_and_then_found,
    failure::pods_refused_by_admission_are_explained,
    failure::pods_refused_by_a_webhook_are_explained,
    failure::a_missing_claim_keeps_no_gpu_from_others,
    failure::a_job_that_cannot_be_made_says_why,
    hands::an_evicted_workload_is_placed_again_without_a_retry,
    hands::a_taint_that_evicts_uses_no_retry,
    hands::a_job_suspended_by_hand_gives_its_gpus_back,
    hands::a_job_or_pod_deleted_by_hand_is_called_that,
    hands::a_pod_left_by_its_job_is_followed_to_its_end,
    hands::the_simple_form_runs_where_pods_are_restricted,
    retry::a_second_attempt_may_succeed,
    retry::attempts_are_exhausted_and_no_more,
    stop::a_suspended_workload_gives_its_gpus_back_and_resumes,
    stop::a_workload_that_runs_too_long_fails_for_good,
    stop::a_deadline_is_final_also_when_pods_vanish_at_once,
    stop::a_finished_workload_goes_after_its_ttl,
    delete::nothing_is_left_in_any_phase,
    tenant::a_tenant_counts_what_its_namespaces_use,
    tenant::the_example_waits_for_its_namespaces,
    tenant::a_namespace_that_two_tenants_claim_is_said_on_both,
    serve::a_service_is_served_changed_and_deleted,
    serve::a_service_that_cannot_be_says_why,
    serve::an_autoscaler_of_others_is_told_and_its_number_carried_out,
    serve::copies_and_workloads_wait_in_one_line,
    serve::a_copy_that_spans_nodes_is_placed_and_started_again_as_a_whole,
    serve::a_node_labelled_later_serves_and_one_that_is_closed_serves_on,
    serve::a_service_on_two_vendors_prefers_the_first_and_falls_over,
    modelcache::a_cache_says_what_it_waits_for_and_goes_when_nobody_mounts_it,
    modelcache::a_service_waits_for_its_cache_and_keeps_it,
    modelcache::caches_of_the_same_content_fetch_once,
    modelcache::nodes_carry_no_label_without_a_copy,
    tenant::owners_and_walls_follow_their_tenant,
    tenant::a_quota_holds_until_it_is_raised,
    tenant::work_that_says_no_priority_has_its_tenants,
    tenant::a_tenant_takes_back_what_it_lent,
    clouds::a_machine_is_rented_joins_and_is_given_back,
    clouds::a_cloud_with_a_key_is_asked_with_it_and_without_it_nothing_is_bought,
    rent::a_workload_that_waits_is_placed_on_a_machine_rented_for_it,
    rent::a_gang_that_no_machine_holds_is_placed_on_several_rented_together,
    rent::a_spot_machine_is_replaced_before_it_is_taken_back,
    rent::nobody_names_another_as_the_one_who_made_it,
    rent::a_budget_holds_what_could_pass_it_until_it_is_raised,
    autoscale::who_waits_is_shown_and_has_the_node_that_was_bought_for_it,
    input::what_cannot_work_is_explained_once,
    input::bad_objects_are_refused_by_the_api,
];

fn shared_cluster(builder: Builder) -> Builder {
    let [(east, two), (west, one)] = gang::zoned();
    let [h800, late] = serve::labelled_later();
    let [amd, nvidia] = serve::two_vendors();
    let builder = share::nodes()
        .into_iter()
        .fold(builder, |builder, shape| builder.nodes(shape, 1));
    builder
        .nodes(east, two)
        .nodes(west, one)
        .nodes(gang::paired(), 2)
        .nodes(gang::elastic(), 2)
        .audited()
        .nodes(NodeShape::h100(8), 6)
        .nodes(NodeShape::mi300x(8), 1)
        // One GPU of a model no other scenario uses: to wait for.
        .nodes(NodeShape::a100_40(1), 1)
        // Two alike that no other scenario uses: to be refused on one of them.
        .nodes(NodeShape::l4(4), 2)
        // One GPU of a model no other scenario uses: to be taken while its first owner waits.
        .nodes(
            NodeShape::nvidia("a10", "NVIDIA-A10", 23_028, "ampere", 1),
            1,
        )
        .nodes(place::priced("dear", "9.90"), 1)
        .nodes(place::priced("cheap", "0.40"), 1)
        .nodes(place::docker(), 1)
        .nodes(place::compared("north", "1"), 1)
        .nodes(place::compared("south", "4"), 1)
        .nodes(place::emptied(), 1)
        .nodes(place::contested(), 1)
        .nodes(place::ranked(), 1)
        .nodes(stop::saving(), 1)
        .nodes(tenant::shared(), 1)
        .nodes(serve::contested(), 1)
        .nodes(serve::spanned(), 2)
        .nodes(h800, 1)
        .nodes(late, 1)
        .nodes(amd, 1)
        .nodes(nvidia, 1)
        .nodes(queued::single(), 1)
        .nodes(queued::taken(), 1)
        .nodes(queued::pair(), 2)
        .nodes(others::two(), 2)
        .nodes(estimate::waited_for(), 1)
        .nodes(place::closed(), 1)
        .nodes(hands::tainted(), 1)
}

/// What a part of the suite leaves for the last judgement.
type Used = BTreeSet<Action>;

/// A scenario with a cluster of its own.
type Part = (&'static str, BoxFuture<'static, Result<Used>>);

fn parts(engine: Engine) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![
        (
            "crash::killed_in_every_phase",
            Box::pin(crash::killed_in_every_phase(engine)),
        ),
        ("loss::lost_nodes", Box::pin(loss::lost_nodes(engine))),
        (
            "leader::two_operators",
            Box::pin(leader::two_operators(engine)),
        ),
        (
            "install::upgrade_and_uninstall",
            Box::pin(install::upgrade_and_uninstall(engine)),
        ),
        (
            "crowd::two_hundred_at_once",
            Box::pin(crowd::two_hundred_at_once(engine)),
        ),
        (
            "role::namespaced_role",
            Box::pin(role::namespaced_role(engine)),
        ),
    ];
    if engine == Engine::Real {
        // What the role forbids is asked of a real server.
        parts.push(("security::neighbours", Box::pin(security::neighbours())));
        // The embedded engine signs no certificates.
        parts.push((
            "joining::a_machine_becomes_a_node",
            Box::pin(joining::a_machine_becomes_a_node()),
        ));
        parts.push((
            "faulty::crash_points_hold",
            Box::pin(faulty::crash_points_hold()),
        ));
    }
    parts
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    Programme::of(&arguments).play(arguments)
}
