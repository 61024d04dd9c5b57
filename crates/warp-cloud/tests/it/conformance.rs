//! What holds for every provider.

use std::time::Duration;

use warp_cloud::{Class, Container, Decimal, Machine, Secret, State, in_region};
use warp_vendor::{Brand, Trouble};

use super::stand::{KEY, MARK, OWNER, Stand, account, kind};

async fn named(stand: &Stand, name: &str) -> Vec<Machine> {
    let all = stand.provider.machines(MARK, &[]).await.expect("a list");
    all.into_iter()
        .filter(|machine| machine.name == name)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn offers_are_read_and_named_as_the_catalogue_names_them() {
    for stand in Stand::every() {
        let brand = stand.brand;
        let offers = stand.provider.offers().await.expect("offers");
        assert!(offers.len() >= 3, "{brand:?}: {offers:?}");
        for offer in &offers {
            let known = warp_core::gpu::MODELS
                .iter()
                .any(|model| model.name == offer.gpu);
            assert!(known, "{brand:?}: {offer:?}");
            assert_eq!(offer.nonsense(), None, "{brand:?}: {offer:?}");
            assert!(in_region(&offer.region, &offer.region));
        }
        let sellers = offers
            .iter()
            .filter(|offer| offer.spot_price.is_some())
            .count();
        assert_eq!(sellers > 0, kind(brand).capabilities().spot, "{brand:?}");
        let mut same: Vec<_> = offers
            .iter()
            .map(|offer| (&offer.instance_type, &offer.region, offer.gpus))
            .collect();
        same.sort();
        same.dedup();
        assert_eq!(
            same.len(),
            offers.len(),
            "{brand:?}: one thing is offered twice"
        );
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn prices_move_with_the_vendor() {
    for stand in Stand::every()
        .into_iter()
        .filter(|stand| stand.brand.tells_prices())
    {
        let before = stand.cheapest().await;
        tokio::time::advance(Duration::from_hours(24)).await;
        stand.vendor.script(|script| script.price_percent = 200);
        let after = stand.cheapest().await;
        assert_eq!(
            after.price,
            before.price * Decimal::TWO,
            "{:?}",
            stand.brand
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_bought_found_followed_and_ended() {
    for stand in Stand::every() {
        let brand = stand.brand;
        stand.vendor.foreign("somebody-elses");
        stand.vendor.script(|script| {
            script.boot = Duration::from_mins(2);
            script.stop = Duration::from_mins(1);
        });
        let launch = stand.launch(1).await;
        let bought = stand.provider.launch(&launch).await.expect("a machine");
        assert_eq!(bought.name, launch.name, "{brand:?}");
        assert_eq!(bought.state, State::Pending, "{brand:?}");
        let listed = named(&stand, &launch.name).await;
        assert_eq!(listed.len(), 1, "{brand:?}");
        assert_eq!(listed[0].id, bought.id, "{brand:?}");
        assert_eq!(listed[0].region, launch.offer.region, "{brand:?}");
        assert_eq!(
            listed[0].instance_type, launch.offer.instance_type,
            "{brand:?}"
        );
        let all = stand.provider.machines("", &[]).await.expect("a list");
        let ours = stand.provider.machines(MARK, &[]).await.expect("a list");
        assert!(ours.len() == 1 && all.len() <= 2, "{brand:?}: {all:?}");
        tokio::time::advance(Duration::from_mins(3)).await;
        let runs = stand
            .provider
            .status(&bought.id)
            .await
            .expect("an answer")
            .expect("a machine");
        assert_eq!(
            (runs.state, runs.name),
            (State::Running, launch.name.clone()),
            "{brand:?}"
        );
        if let Some(price) = runs.price {
            assert_eq!(price, launch.offer.price, "{brand:?}");
        }
        stand.provider.terminate(&bought.id).await.expect("the end");
        stand
            .provider
            .terminate(&bought.id)
            .await
            .expect("the end, twice");
        tokio::time::advance(Duration::from_mins(2)).await;
        let gone = stand.provider.status(&bought.id).await.expect("an answer");
        let gone = gone.is_none_or(|machine| machine.state == State::Gone);
        assert!(gone, "{brand:?}");
        stand
            .provider
            .terminate(&bought.id)
            .await
            .expect("the end, of what is gone");
        assert!(named(&stand, &launch.name).await.is_empty(), "{brand:?}");
        assert_eq!(
            stand.provider.status("700999").await.expect("an answer"),
            None,
            "{brand:?}"
        );
        stand
            .provider
            .terminate("700999")
            .await
            .expect("nothing to end");
        let said = stand.vendor.machines()[1].said.to_string();
        assert!(
            said.contains("hush-hush") || said.contains("aHVzaC1odXNo"),
            "{brand:?}: {said}"
        );
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn who_wants_a_machine_stands_on_it() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        stand.provider.launch(&launch).await.expect("a machine");
        let said = stand.vendor.machines()[0].said.to_string();
        let plain = said.contains(OWNER) || said.contains(&OWNER.replace('/', "_"));
        assert!(
            plain || stand.brand.has_no_marks(),
            "{:?}: {said}",
            stand.brand
        );
    }
}

/// A launch whose answer was lost is found by its name, once it shows; where the vendor knows when a launch is the
/// same, repeating it buys nothing.
#[tokio::test(start_paused = true)]
async fn a_launch_whose_answer_is_lost_is_found_again() {
    for stand in Stand::every() {
        let brand = stand.brand;
        let lag = Duration::from_secs(45);
        assert!(lag <= kind(brand).capabilities().lag, "{brand:?}");
        stand.vendor.script(|script| script.lag = lag);
        let launch = stand.launch(1).await;
        stand.vendor.once(brand.launches(), Trouble::DoneThenHangUp);
        let lost = stand.provider.launch(&launch).await;
        if brand.knows_repetitions() {
            let again = stand
                .provider
                .launch(&launch)
                .await
                .expect("the same machine");
            assert_eq!(lost.expect("the same machine").id, again.id, "{brand:?}");
        } else {
            assert_eq!(
                lost.map_err(|failure| failure.class),
                Err(Class::Transient),
                "{brand:?}"
            );
        }
        assert_eq!(stand.vendor.machines().len(), 1, "{brand:?} bought twice");
        tokio::time::advance(kind(brand).capabilities().settle()).await;
        assert_eq!(named(&stand, &launch.name).await.len(), 1, "{brand:?}");
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_nobody_can_read_is_no_reason_to_buy_twice() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        stand
            .vendor
            .once(stand.brand.launches(), Trouble::DoneThenGarbage);
        let failure = stand.provider.launch(&launch).await.expect_err("garbage");
        assert_eq!(
            failure.class,
            Class::Transient,
            "{:?}: {failure}",
            stand.brand
        );
        assert_eq!(stand.vendor.machines().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_nobody_can_read_are_told() {
    for stand in Stand::every() {
        for body in ["", "[]", "{\"data\": 7}", "<html>"] {
            stand.vendor.once("", Trouble::status(200, body));
            let answer = stand.provider.machines(MARK, &[]).await;
            let class = answer
                .map(|list| list.len())
                .map_err(|failure| failure.class);
            assert_eq!(
                class,
                Err(Class::Transient),
                "{:?} took {body}",
                stand.brand
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sold_out_and_full_accounts_are_told_apart() {
    for stand in Stand::every() {
        let brand = stand.brand;
        let launch = stand.launch(1).await;
        stand.vendor.script(|script| script.sold_out = true);
        let failure = stand.provider.launch(&launch).await.expect_err("sold out");
        assert_eq!(failure.class, Class::NoCapacity, "{brand:?}: {failure}");
        stand.vendor.script(|script| {
            script.sold_out = false;
            script.quota = Some(0);
        });
        let failure = stand
            .provider
            .launch(&launch)
            .await
            .expect_err("the account is full");
        let wanted = if brand.tells_quota() {
            Class::Quota
        } else {
            Class::NoCapacity
        };
        assert_eq!(failure.class, wanted, "{brand:?}: {failure}");
        assert!(stand.vendor.machines().is_empty(), "{brand:?}");
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_without_money_is_told() {
    for stand in Stand::every()
        .into_iter()
        .filter(|stand| stand.brand.tells_balance())
    {
        let launch = stand.launch(1).await;
        stand.vendor.script(|script| script.no_balance = true);
        let failure = stand.provider.launch(&launch).await.expect_err("no money");
        assert_eq!(
            failure.class,
            Class::NoBalance,
            "{:?}: {failure}",
            stand.brand
        );
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_are_told_and_never_shown() {
    for stand in Stand::every() {
        let brand = stand.brand;
        stand
            .vendor
            .script(|script| script.key = "another".to_owned());
        let failures = [
            stand.provider.offers().await.map(|_| ()),
            stand.provider.machines(MARK, &[]).await.map(|_| ()),
            stand.provider.status("700001").await.map(|_| ()),
            stand.provider.terminate("700001").await,
        ];
        for failure in failures {
            let failure = failure.expect_err("a stranger");
            assert_eq!(failure.class, Class::BadCredentials, "{brand:?}: {failure}");
            assert!(
                !format!("{failure:?}").contains(KEY),
                "{brand:?}: {failure}"
            );
        }
        assert!(!format!("{:?}", stand.provider).contains(KEY), "{brand:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_without_a_key_is_not_opened() {
    for brand in Brand::ALL {
        let mut account = account(brand);
        account.secrets.retain(|key, _| key == "userData");
        let network = std::sync::Arc::new(warp_cloud::Network::new().expect("a network"));
        let now = std::sync::Arc::new(jiff::Timestamp::now);
        let failure = warp_cloud::open(account, network, now).expect_err("no key");
        assert_eq!(failure.class, Class::BadCredentials, "{brand:?}: {failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_never_join_is_not_bought() {
    for brand in Brand::ALL {
        let mut account = account(brand);
        account.secrets.remove("userData");
        account.settings.image = None;
        let stand = Stand::with(brand, account);
        let launch = stand.launch(1).await;
        let failure = stand
            .provider
            .launch(&launch)
            .await
            .expect_err("no way to join");
        assert_eq!(failure.class, Class::Refused, "{brand:?}: {failure}");
        assert!(stand.vendor.machines().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn spot_is_refused_by_name_where_it_is_not_sold_and_told_where_it_is() {
    for stand in Stand::every() {
        let brand = stand.brand;
        let mut launch = stand.launch(1).await;
        let offers = stand.provider.offers().await.expect("offers");
        launch.spot = true;
        if !kind(brand).capabilities().spot {
            let failure = stand.provider.launch(&launch).await.expect_err("no spot");
            assert_eq!(failure.class, Class::Refused);
            assert!(failure.words.contains("spot"), "{failure}");
            assert!(stand.vendor.machines().is_empty());
            continue;
        }
        let sold = offers.into_iter().find(|offer| offer.spot_price.is_some());
        launch.offer = sold.expect("spot");
        launch.max_price = launch.offer.price;
        let bought = stand
            .provider
            .launch(&launch)
            .await
            .expect("a spot machine");
        assert!(stand.vendor.machines()[0].spot, "{brand:?}");
        let seen = stand.provider.status(&bought.id).await.expect("an answer");
        assert!(seen.expect("a machine").spot, "{brand:?}");
        stand.vendor.preempt(&stand.vendor.machines()[0].id);
        let seen = stand.provider.status(&bought.id).await.expect("an answer");
        let state = seen.map_or(State::Gone, |machine| machine.state);
        let over = [
            State::Preempted,
            State::Stopped,
            State::Gone,
            State::Terminating,
        ];
        assert!(over.contains(&state), "{brand:?}: {state:?}");
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn a_vendor_that_asks_to_wait_is_waited_for() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        let start = tokio::time::Instant::now();
        let trouble = Trouble::Answer {
            status: 429,
            headers: vec![("retry-after", "7".to_owned())],
            body: String::new(),
        };
        stand.vendor.once(stand.brand.launches(), trouble);
        stand
            .provider
            .launch(&launch)
            .await
            .expect("a machine after a while");
        assert!(
            start.elapsed() >= Duration::from_secs(7),
            "{:?}",
            stand.brand
        );
        assert_eq!(stand.vendor.machines().len(), 1);
        stand.judged();
    }
}

/// Fifty at once stay within the vendor's limits.
#[tokio::test(start_paused = true)]
async fn a_crowd_keeps_to_the_rate_limits() {
    for stand in Stand::every() {
        let offer = stand.cheapest().await;
        let launch = stand.launch(1).await;
        let one = async |number: u32| {
            let launch = warp_cloud::Launch {
                name: format!("{MARK}crowd-{number}"),
                offer: offer.clone(),
                ..launch.clone()
            };
            for _ in 0..100 {
                if let Ok(machine) = stand.provider.launch(&launch).await {
                    return Some(machine.id);
                }
                // Looked for before it is asked for again, as the operator does it.
                if let Some(found) = named(&stand, &launch.name).await.first() {
                    return Some(found.id.clone());
                }
            }
            None
        };
        let bought = futures::future::join_all((0..50).map(one)).await;
        assert!(bought.iter().all(Option::is_some), "{:?}", stand.brand);
        assert_eq!(stand.vendor.machines().len(), 50, "{:?}", stand.brand);
        let looks = bought.iter().flatten().map(|id| stand.provider.status(id));
        let looks = futures::future::join_all(looks).await;
        assert!(
            looks
                .into_iter()
                .all(|seen| seen.is_ok_and(|seen| seen.is_some()))
        );
        stand.judged();
    }
}

#[tokio::test(start_paused = true)]
async fn trouble_that_passes_is_not_seen_by_those_who_only_look() {
    for stand in Stand::every() {
        stand.vendor.once("", Trouble::status(503, "{}"));
        stand.vendor.once("", Trouble::HangUp);
        let list = stand.provider.machines(MARK, &[]).await;
        assert_eq!(list.map(|list| list.len()), Ok(0), "{:?}", stand.brand);
    }
}

#[tokio::test(start_paused = true)]
async fn a_vendor_that_never_answers_costs_a_deadline() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        stand.vendor.once(
            stand.brand.launches(),
            Trouble::Slow(Duration::from_hours(1)),
        );
        let start = tokio::time::Instant::now();
        let outcome = stand.provider.launch(&launch).await;
        let limit = kind(stand.brand).capabilities().call_deadline;
        assert!(
            start.elapsed() <= limit,
            "{:?}: {:?}",
            stand.brand,
            start.elapsed()
        );
        if let Err(failure) = outcome {
            assert_eq!(failure.class, Class::Transient);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stays_is_seen_to_stay() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        let bought = stand.provider.launch(&launch).await.expect("a machine");
        stand.vendor.script(|script| script.stays = true);
        stand.provider.terminate(&bought.id).await.expect("the end");
        tokio::time::advance(Duration::from_mins(10)).await;
        assert_eq!(
            named(&stand, &launch.name).await.len(),
            1,
            "{:?}",
            stand.brand
        );
        stand.vendor.lose(&stand.vendor.machines()[0].id);
        assert!(named(&stand, &launch.name).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_account_logs_in_once_for_many_questions() {
    let key = include_str!("../../src/gcp/throwaway.pem");
    let file = serde_json::json!({"client_email": "a@b", "private_key": key});
    let mut account = account(Brand::Gcp);
    account.secrets.remove("token");
    let file = warp_cloud::Secret::new(file.to_string());
    account.secrets.insert("serviceAccount".to_owned(), file);
    let stand = Stand::with(Brand::Gcp, account);
    for _ in 0..3 {
        stand.provider.machines(MARK, &[]).await.expect("a list");
    }
    let logins = |stand: &Stand| {
        let all = stand.vendor.recorded();
        all.iter().filter(|record| record.path == "/token").count()
    };
    assert_eq!(logins(&stand), 1);
    tokio::time::advance(Duration::from_hours(2)).await;
    stand.provider.machines(MARK, &[]).await.expect("a list");
    assert_eq!(logins(&stand), 2);
    stand.judged();
}

/// The provider's own timers end a machine that nobody ends.
#[tokio::test(start_paused = true)]
async fn the_lifetime_is_told_where_the_vendor_keeps_it() {
    for (brand, said) in [
        (Brand::Gcp, "\"maxRunDuration\":{\"seconds\":\"7200\"}"),
        (Brand::Paperspace, "\"autoShutdownTimeout\":2"),
        (
            Brand::Aws,
            "\"InstanceInitiatedShutdownBehavior\":\"terminate\"",
        ),
    ] {
        let stand = Stand::new(brand);
        let launch = stand.launch(1).await;
        stand.provider.launch(&launch).await.expect("a machine");
        let told = stand.vendor.machines()[0].said.to_string();
        assert!(told.contains(said), "{brand:?}: {told}");
    }
}

/// A region that is taken out of the account while a launch is under way has its machine still.
#[tokio::test(start_paused = true)]
async fn a_machine_in_a_region_the_account_has_left_is_found_where_it_was_bought() {
    for brand in Brand::ALL {
        let stand = Stand::new(brand);
        let launch = stand.launch(1).await;
        stand.vendor.once(brand.launches(), Trouble::DoneThenHangUp);
        // The answer is lost: all that is left of it is the name.
        let _ = stand.provider.launch(&launch).await;
        let mut moved = account(brand);
        let elsewhere = if brand == Brand::Azure {
            "westeurope"
        } else {
            "eu-west-1"
        };
        moved.regions = vec![elsewhere.to_owned()];
        let moved = stand.again(moved);
        tokio::time::advance(Duration::from_mins(5)).await;
        let also = [launch.offer.region.clone()];
        let found = moved.machines(MARK, &also).await.expect("a list");
        assert_eq!(found.len(), 1, "{brand:?}");
        assert_eq!(found[0].name, launch.name, "{brand:?}");
        moved.terminate(&found[0].id).await.expect("the end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_runs_what_its_pod_says_and_its_end_is_told() {
    for brand in [Brand::Runpod, Brand::Vast] {
        let stand = Stand::new(brand);
        let mut launch = stand.launch(1).await;
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let container = Container {
            image: "train:1".to_owned(),
            command: Vec::new(),
            args: text(&["python", "train.py", "it's"]),
            env: vec![
                ("TOKEN".to_owned(), Secret::new("of-the-pod")),
                ("WORDS".to_owned(), Secret::new("a b")),
            ],
        };
        launch.container = Some(container.clone());
        let bought = stand.provider.launch(&launch).await.expect("a container");
        let said = stand.vendor.machines()[0].said.clone();
        assert_eq!(said["image"], "train:1", "{brand:?}: {said}");
        assert!(
            !said.to_string().contains("hush-hush"),
            "{brand:?}: nothing joins: {said}"
        );
        if brand == Brand::Runpod {
            assert_eq!(said["args"], r"python train.py 'it'\''s'");
            assert_eq!(said["env"]["TOKEN"], "of-the-pod");
            assert_eq!(said["env"]["WORDS"], "a b");
        } else {
            assert_eq!(
                said["args"],
                serde_json::json!(["python", "train.py", "it's"])
            );
            assert_eq!(said["runtype"], "args");
            let env = said["env"].as_str().unwrap_or_default();
            assert!(env.contains("-e TOKEN=of-the-pod -e 'WORDS=a b'"), "{env}");
        }
        tokio::time::advance(Duration::from_mins(1)).await;
        let runs = stand.provider.status(&bought.id).await.expect("an answer");
        let runs = runs.expect("a container");
        assert_eq!((runs.state, runs.exit), (State::Running, None), "{brand:?}");
        // Neither vendor tells how a container ended.
        stand.vendor.preempt(&bought.id);
        tokio::time::advance(Duration::from_mins(1)).await;
        let over = stand.provider.status(&bought.id).await.expect("an answer");
        let over = over.expect("a container");
        assert_eq!(over.state, State::Stopped, "{brand:?}");
        assert_eq!(over.exit.map(|exit| exit.code), Some(None), "{brand:?}");
        stand.provider.terminate(&bought.id).await.expect("the end");
        tokio::time::advance(Duration::from_mins(1)).await;
        launch.container = Some(Container {
            command: text(&["python"]),
            ..container
        });
        let refused = stand.provider.launch(&launch).await;
        let refused = refused.expect_err("an entry point cannot be replaced");
        assert_eq!(refused.class, Class::Refused, "{brand:?}");
        assert!(
            refused.words.contains("entry point"),
            "{brand:?}: {refused}"
        );
        stand.judged();
    }
}
