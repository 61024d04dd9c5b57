//! Two processes that both believe to lead buy one machine.

use warp_runtime::plan::Premise;

use super::*;

/// The same request as another process sees it, which began at `began`.
fn other(began: i64, asked: i64) -> Seen {
    let sight = Sight {
        process_began: Some(at(began)),
        ..sight(asked, None)
    };
    Seen {
        process: "other@2".to_owned(),
        ..with(sight, None, false)
    }
}

#[test]
fn only_the_process_that_wrote_the_intent_buys() {
    let it = intended(&json!({}));
    let one = plan(&it, &with(sight(2, None), None, false), at(2));
    assert!(matches!(calls(&one)[..], [What::Make(_)]), "{one:?}");
    assert!(
        matches!(&one.premises[..], [Premise::Unchanged(_)]),
        "the API server is asked first: {one:?}"
    );
    let rival = plan(&it, &other(-50, 2), at(2));
    assert!(rival.calls.is_empty(), "{rival:?}");
    let status = written(&rival);
    assert_eq!(status.attempts[0].caller.as_deref(), Some("one@1"));
    assert!(reason(&status).1.contains("one@1 rents"), "{status:?}");
}

#[test]
fn one_that_began_later_takes_over_and_waits_for_what_the_other_sent() {
    let mut it = intended(&json!({}));
    let status = written(&plan(&it, &other(10, 11), at(11)));
    assert_eq!(status.attempts[0].caller.as_deref(), Some("other@2"));
    it.status = Some(status);
    // The first has lost it, also when it hears of that.
    let first = plan(&it, &with(sight(12, None), None, false), at(12));
    assert!(first.calls.is_empty(), "{first:?}");
    for early in [12, 140] {
        let waits = plan(&it, &other(10, early), at(early));
        assert!(waits.calls.is_empty(), "at {early}: {waits:?}");
    }
    let late = plan(&it, &other(10, 142), at(142));
    assert!(matches!(calls(&late)[..], [What::Make(_)]), "{late:?}");
}

#[test]
fn one_that_is_silent_for_long_is_followed_by_the_other() {
    let mut it = intended(&json!({}));
    let before = plan(&it, &other(-50, 250), at(259));
    assert!(before.calls.is_empty());
    assert_eq!(
        written(&before).attempts[0].caller.as_deref(),
        Some("one@1")
    );
    let status = written(&plan(&it, &other(-50, 261), at(261)));
    assert_eq!(status.attempts[0].caller.as_deref(), Some("other@2"));
    // Deleted meanwhile: it goes when nothing that was sent can still appear.
    it.status = Some(status);
    it.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        at(262),
    ));
    it.status = Some(written(&plan(&it, &other(-50, 262), at(262))));
    let open = |now| {
        let pass = plan(&it, &other(-50, now), at(now));
        let status = pass.actions.iter().find_map(|action| match action {
            Action::Status(status) => Some(status.after["attempts"][0]["outcome"].clone()),
            _ => None,
        });
        status.is_none_or(|outcome| outcome.is_null())
    };
    assert!(open(300), "what the other sent may still appear");
    assert!(!open(392));
}
