//! A gang that no single machine holds: what is asked for, how it is followed, and what comes after it failed.

use super::super::super::rent::{Several, several};
use super::*;

/// A gang of `members` with two GPUs each.
fn gang(members: i32, max_price: Value, state: Value) -> GPUWorkload {
    let spec = json!({"gpu": {"models": ["H100"]}, "replicas": members,
        "rent": {"maxPrice": max_price, "after": "0s", "within": "20m", "maxTotalPrice": 100}});
    workload(spec, json!({"phase": "Pending", "rent": state}))
}

fn cloud(name: &str, offers: &[(&str, &str, u32, &str)]) -> Arc<warp_api::CloudProvider> {
    let mut it = (*selling(&[])).clone();
    it.metadata.name = Some(name.to_owned());
    let offers = offers.iter().map(|(gpu, region, gpus, price)| {
        let offer = json!({"gpu": gpu, "gpus": gpus, "region": region, "instanceType": format!("{gpu}x{gpus}"),
            "price": price, "availability": "high"});
        serde_json::from_value(offer).unwrap()
    });
    it.status.as_mut().unwrap().offers = offers.collect();
    Arc::new(it)
}

fn market() -> Vec<Arc<warp_api::CloudProvider>> {
    vec![
        cloud(
            "near",
            &[
                ("H100-80GB", "west", 8, "24"),
                ("H100-80GB", "west", 4, "17"),
                ("H100-80GB", "east", 8, "20"),
                ("L4", "west", 8, "1"),
            ],
        ),
        cloud("far", &[("H100-80GB", "north", 8, "22")]),
    ]
}

fn buys(gang: &GPUWorkload, own: &[Arc<GPURequest>]) -> Option<Result<Several, String>> {
    several(gang, own, &market())
}

fn asked(gang: &GPUWorkload, own: &[Arc<GPURequest>]) -> (Course, Vec<Value>) {
    let requests: Vec<&Arc<GPURequest>> = own.iter().collect();
    let mut seen = seen(reason::WAITING_FOR_CAPACITY, &requests);
    seen.rented.several = buys(gang, own);
    let course = planned(gang, &seen);
    let all = made(&course);
    (course, all)
}

/// What was asked for, as it is once it stands so.
fn standing(asked: &[Value], status: Value) -> Vec<Arc<GPURequest>> {
    let each = asked.iter().map(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut it = (*request(name, status.clone())).clone();
        it.spec = serde_json::from_value(object["spec"].clone()).unwrap();
        Arc::new(it)
    });
    each.collect()
}

#[test]
fn all_its_machines_are_asked_for_in_one_place_and_share_the_price() {
    // Six members with two GPUs: two machines with eight in the east.
    let (course, made) = asked(&gang(6, json!(41), Value::Null), &[]);
    let names: Vec<&Value> = made.iter().map(|one| &one["metadata"]["name"]).collect();
    assert_eq!(names, [NAME, "train-01234567-rent-1-2"]);
    for one in &made {
        assert_eq!(
            one["spec"],
            json!({"provider": "near", "region": "east", "gpuModels": ["H100-80GB"], "gpuCount": 8,
                "maxPrice": "20.5", "maxTotalPrice": "50", "spotInstance": false, "idleTimeout": "10m",
                "together": {"name": NAME, "machines": 2, "within": "20m"}})
        );
    }
    let state = state(&course);
    assert_eq!(state.request.as_deref(), Some(NAME));
    assert_eq!(state.others, ["train-01234567-rent-1-2"]);
    assert!(
        message(&course).contains(
            "2 machines (8 x H100-80GB, 8 x H100-80GB) are rented for it together, all or none"
        ),
        "{}",
        message(&course)
    );
}

#[test]
fn one_machine_is_enough_where_one_holds_it_within_the_price() {
    assert!(buys(&gang(4, json!(41), Value::Null), &[]).is_none());
    // Where that one is too dear, several are not dearer only because they are several.
    let clouds = [cloud(
        "near",
        &[
            ("H100-80GB", "west", 8, "24"),
            ("H100-80GB", "west", 4, "9"),
        ],
    )];
    let cheap = several(&gang(4, json!(20), Value::Null), &[], &clouds);
    assert!(matches!(cheap, Some(Ok(_))), "{cheap:?}");
}

#[test]
fn what_no_place_sells_or_nobody_would_pay_is_said() {
    let (course, made) = asked(&gang(64, json!(1000), Value::Null), &[]);
    assert!(made.len() == 16, "{}", message(&course));
    let (course, made) = asked(&gang(65, json!(1000), Value::Null), &[]);
    assert!(made.is_empty());
    assert!(
        message(&course).contains("no cloud sells 16 machines or fewer in one place"),
        "{}",
        message(&course)
    );
    let (course, made) = asked(&gang(12, json!(30), Value::Null), &[]);
    assert!(made.is_empty());
    assert!(
        message(&course).contains("cost 60 an hour, above spec.rent.maxPrice 30"),
        "{}",
        message(&course)
    );
}

#[test]
fn they_are_followed_together_and_the_slowest_speaks() {
    let (course, all) = asked(&gang(6, json!(41), Value::Null), &[]);
    let waits = gang(6, json!(41), serde_json::to_value(state(&course)).unwrap());
    let mut own = standing(
        &all,
        json!({"phase": "Ready", "gpu": "8 x H100-80GB", "pricePerHour": "20.00", "message": "ready"}),
    );
    let second = Arc::make_mut(&mut own[1]).status.as_mut().unwrap();
    second.phase = warp_api::RequestPhase::Booting;
    second.message = Some("m-2 starts".to_owned());
    let (course, made) = asked(&waits, &own);
    assert!(
        made.is_empty() && course.steps.actions.is_empty(),
        "{:?}",
        course.steps.actions
    );
    let said = state(&course);
    assert_eq!(said.phase.as_deref(), Some("Booting"));
    assert_eq!(said.gpu.as_deref(), Some("8 x H100-80GB + 8 x H100-80GB"));
    assert_eq!(said.price_per_hour.as_deref(), Some("40.00"));
    assert!(message(&course).contains("rent 2 machines for it together, all or none: m-2 starts"));
}

#[test]
fn where_not_all_came_another_place_is_tried_and_then_nothing_more() {
    let (course, all) = asked(&gang(6, json!(50), Value::Null), &[]);
    let mut waits = gang(6, json!(50), serde_json::to_value(state(&course)).unwrap());
    let failed = json!({"phase": "Failed", "message": "not all came", "spent": "1.5", "conditions": [{
        "type": "Ready", "status": "False", "reason": "NotAllRented", "message": "",
        "lastTransitionTime": "2026-11-15T11:00:00Z"}]});
    let mut own = standing(&all, failed.clone());
    for (region, name) in [
        ("west", "train-01234567-rent-2"),
        ("north", "train-01234567-rent-3"),
    ] {
        let (course, made) = asked(&waits, &own);
        assert_eq!(made.len(), 2, "{}", message(&course));
        assert_eq!(made[0]["spec"]["region"], region);
        assert_eq!(made[0]["metadata"]["name"], name);
        waits = gang(6, json!(50), serde_json::to_value(state(&course)).unwrap());
        own.extend(standing(&made, failed.clone()));
    }
    let (course, made) = asked(&waits, &own);
    assert!(made.is_empty());
    assert!(
        message(&course).contains("delete its GPURequests to try there again"),
        "{}",
        message(&course)
    );
}

#[test]
fn a_part_of_a_set_that_does_not_fit_any_more_is_taken_back_first() {
    let waits = gang(6, json!(41), Value::Null);
    let (_, all) = asked(&waits, &[]);
    let mut own = standing(&all[..1], Value::Null);
    // The same as it would be asked for again: the other one is made.
    let (course, made) = asked(&waits, &own);
    assert_eq!(made.len(), 2, "{}", message(&course));
    Arc::make_mut(&mut own[0]).spec.region = Some("west".to_owned());
    let (course, made) = asked(&waits, &own);
    assert!(made.is_empty());
    assert_eq!(deletes(&course).len(), 1, "{:?}", course.steps.actions);
}

#[test]
fn what_is_left_of_a_set_is_given_back_when_one_was_deleted_and_all_are_rented_again() {
    let (course, all) = asked(&gang(6, json!(41), Value::Null), &[]);
    let waits = gang(6, json!(41), serde_json::to_value(state(&course)).unwrap());
    let own = standing(&all, json!({"phase": "Ready", "message": "ready"}));
    let (course, made) = asked(&waits, &own[..1]);
    assert!(made.is_empty());
    assert_eq!(deletes(&course).len(), 1, "{:?}", course.steps.actions);
    assert!(
        message(&course).contains("1 of the 2 GPURequests that rented for it together are gone"),
        "{}",
        message(&course)
    );
    let still = gang(6, json!(41), serde_json::to_value(state(&course)).unwrap());
    let (_, made) = asked(&still, &[]);
    assert_eq!(made.len(), 2);
}

#[test]
fn when_room_comes_before_anything_is_bought_all_are_taken_back() {
    let (course, all) = asked(&gang(6, json!(41), Value::Null), &[]);
    let waits = gang(6, json!(41), serde_json::to_value(state(&course)).unwrap());
    let mut own = standing(&all, json!({"phase": "Pending"}));
    let given_up = |own: &[Arc<GPURequest>]| {
        let own: Vec<&Arc<GPURequest>> = own.iter().collect();
        deletes(&planned(&waits, &seen(reason::QUOTA_EXCEEDED, &own))).len()
    };
    assert_eq!(given_up(&own), 2);
    let open = json!({"phase": "Booting", "attempts": [attempt(Value::Null)]});
    Arc::make_mut(&mut own[1]).status = Some(serde_json::from_value(open).unwrap());
    assert_eq!(given_up(&own), 0, "one of them is bought");
}

#[test]
fn a_gang_whose_price_is_too_low_says_the_cheapest_and_rents_once_it_is_raised() {
    // Six members with two GPUs: no single machine is sold with twelve.
    let (course, made) = asked(&gang(6, json!(30), Value::Null), &[]);
    assert!(made.is_empty(), "{made:?}");
    assert!(
        message(&course).contains("cost 40 an hour, above spec.rent.maxPrice 30: raise it"),
        "{}",
        message(&course)
    );
    let raised = gang(6, json!(40), serde_json::to_value(state(&course)).unwrap());
    assert_eq!(asked(&raised, &[]).1.len(), 2);
}

#[test]
fn where_one_machine_is_cheaper_than_several_its_request_says_the_price() {
    let clouds = [cloud(
        "near",
        &[
            ("H100-80GB", "west", 16, "44"),
            ("H100-80GB", "west", 8, "23"),
        ],
    )];
    assert!(several(&gang(6, json!(30), Value::Null), &[], &clouds).is_none());
    assert!(several(&gang(6, json!(1), Value::Null), &[], &[]).is_none());
}

#[test]
fn a_request_for_one_machine_gives_way_to_several_once_they_are_within_the_price() {
    let state = json!({"waitingSince": "2026-11-15T11:00:00Z", "request": NAME, "requests": 1});
    let none = json!({"phase": "Pending", "message": "no provider offers 12 x H100"});
    let own = [request(NAME, none)];
    let (course, made) = asked(&gang(6, json!(30), state.clone()), &own);
    assert!(made.is_empty() && deletes(&course).is_empty());
    assert!(
        message(&course).contains("cost 40 an hour, above spec.rent.maxPrice 30"),
        "{}",
        message(&course)
    );
    let (course, made) = asked(&gang(6, json!(40), state.clone()), &own);
    assert!(made.is_empty(), "{made:?}");
    assert_eq!(
        deletes(&course),
        [("GPURequest".to_owned(), NAME.to_owned())]
    );
    let bought = [request(
        NAME,
        json!({"phase": "Booting", "attempts": [attempt(Value::Null)]}),
    )];
    let (course, _) = asked(&gang(6, json!(40), state), &bought);
    assert!(deletes(&course).is_empty(), "what is bought stays");
}

#[test]
fn a_raised_price_reaches_requests_that_are_made_and_have_bought_nothing() {
    let (course, all) = asked(&gang(6, json!(41), Value::Null), &[]);
    let state = serde_json::to_value(state(&course)).unwrap();
    let mut own = standing(&all, json!({"phase": "Pending"}));
    let patches = |most: i32, own: &[Arc<GPURequest>]| {
        let (course, _) = asked(&gang(6, json!(most), state.clone()), own);
        let each = course.steps.actions.iter().map(|action| match action {
            Action::Patch { patch, .. } => patch["spec"]["maxPrice"].clone(),
            other => panic!("{other:?}"),
        });
        each.collect::<Vec<_>>()
    };
    assert!(patches(41, &own).is_empty());
    assert_eq!(patches(50, &own), ["25", "25"]);
    let open = json!({"phase": "Booting", "attempts": [attempt(Value::Null)]});
    Arc::make_mut(&mut own[1]).status = Some(serde_json::from_value(open).unwrap());
    assert!(patches(50, &own).is_empty(), "one of them is bought");
}
