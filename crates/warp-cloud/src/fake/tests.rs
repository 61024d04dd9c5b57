//! The fake cloud does what a cloud does, and what its script says.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rust_decimal::Decimal;

use super::*;
use crate::provider::Container;

/// Books in memory, with a version that moves.
#[derive(Debug, Default)]
struct Shelf(Mutex<(Books, u64)>);

impl Store for Shelf {
    fn read(&self) -> BoxFuture<'_, Result<(Books, Version), Failure>> {
        let (books, version) = self.0.lock().clone();
        Box::pin(async move { Ok((books, version.to_string())) })
    }

    fn write<'a>(
        &'a self,
        books: &'a Books,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        let mut kept = self.0.lock();
        let current = kept.1.to_string() == *version;
        if current {
            *kept = (books.clone(), kept.1 + 1);
        }
        Box::pin(async move { Ok(current) })
    }
}

struct Cloud {
    fake: Fake,
    shelf: Arc<Shelf>,
    time: Arc<Mutex<Timestamp>>,
}

impl Cloud {
    fn new() -> Self {
        let start: Timestamp = "2026-11-16T12:00:00Z".parse().expect("a time");
        let (shelf, time) = (Arc::<Shelf>::default(), Arc::new(Mutex::new(start)));
        let read = time.clone();
        let fake = Fake::new(shelf.clone(), Arc::new(move || *read.lock()));
        Self { fake, shelf, time }
    }

    fn pass(&self, count: u32) {
        let mut time = self.time.lock();
        *time = later(*time, count);
    }

    fn script(&self, change: impl Fn(&mut Script)) {
        let mut kept = self.shelf.0.lock();
        change(&mut kept.0.script);
        kept.1 += 1;
    }

    fn now(&self) -> Timestamp {
        *self.time.lock()
    }
}

async fn wanted(cloud: &Cloud, gpu: &str, spot: bool) -> Launch {
    let offers = cloud.fake.offers().await.expect("offers");
    let offer = offers.into_iter().find(|offer| offer.gpu == gpu);
    let offer = offer.expect("a model of the list");
    Launch {
        name: "warp-0-1".to_owned(),
        max_price: offer.price,
        offer,
        spot,
        owner: "default/a".to_owned(),
        lifetime_seconds: None,
        image: None,
        user_data: None,
        join: None,
        container: None,
    }
}

#[tokio::test]
async fn a_machine_boots_runs_stops_and_is_billed_by_the_second() {
    let cloud = Cloud::new();
    let launch = wanted(&cloud, "H100-80GB", false).await;
    let machine = cloud.fake.launch(&launch).await.expect("a machine");
    assert_eq!(machine.state, State::Pending);
    cloud.pass(5);
    let seen = cloud.fake.machines("warp-0-", &[]).await.expect("a list");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].state, State::Running);
    cloud.pass(1795);
    cloud.fake.terminate(&machine.id).await.expect("no failure");
    let seen = cloud.fake.status(&machine.id).await.expect("an answer");
    assert_eq!(seen.expect("it stops").state, State::Terminating);
    cloud.pass(60);
    let seen = cloud.fake.status(&machine.id).await.expect("an answer");
    let seen = seen.expect("its end is remembered");
    assert_eq!(seen.state, State::Gone);
    assert!(seen.ended.is_some());
    assert!(
        cloud
            .fake
            .machines("warp-", &[])
            .await
            .expect("a list")
            .is_empty()
    );
    // 2.90 an hour for 1802 seconds.
    let bill = cloud.shelf.0.lock().0.bill(cloud.now());
    assert_eq!(bill, Decimal::new(14516, 4));
}

#[tokio::test]
async fn launched_twice_it_is_bought_twice() {
    let cloud = Cloud::new();
    let launch = wanted(&cloud, "L4", false).await;
    let one = cloud.fake.launch(&launch).await.expect("a machine");
    let other = cloud.fake.launch(&launch).await.expect("a machine");
    assert_ne!(one.id, other.id);
    assert_eq!(cloud.shelf.0.lock().0.running(cloud.now()), 2);
}

#[tokio::test]
async fn a_new_machine_may_be_missing_from_every_answer() {
    let cloud = Cloud::new();
    cloud.script(|script| script.hidden_seconds = 60);
    let launch = wanted(&cloud, "L4", false).await;
    let machine = cloud.fake.launch(&launch).await.expect("a machine");
    assert!(
        cloud
            .fake
            .machines("warp-", &[])
            .await
            .expect("a list")
            .is_empty()
    );
    assert_eq!(cloud.fake.status(&machine.id).await, Ok(None));
    cloud.pass(60);
    assert_eq!(
        cloud
            .fake
            .machines("warp-", &[])
            .await
            .expect("a list")
            .len(),
        1
    );
}

#[tokio::test]
async fn what_the_script_refuses_is_refused_with_its_class() {
    let cloud = Cloud::new();
    let launch = wanted(&cloud, "A100-80GB", false).await;
    let class = async || {
        cloud
            .fake
            .launch(&launch)
            .await
            .expect_err("a refusal")
            .class
    };
    cloud.script(|script| script.sold_out = vec!["A100-80GB".to_owned()]);
    assert_eq!(class().await, Class::NoCapacity);
    cloud.script(|script| {
        script.sold_out.clear();
        script.machine_limit = Some(0);
    });
    assert_eq!(class().await, Class::Quota);
    cloud.script(|script| script.credentials_refused = true);
    assert_eq!(class().await, Class::BadCredentials);
    let mut unknown = launch.clone();
    unknown.offer.instance_type = "none".to_owned();
    cloud.script(|script| *script = Script::default());
    let refused = cloud.fake.launch(&unknown).await.expect_err("a refusal");
    assert_eq!(refused.class, Class::Refused);
    assert!(
        cloud.shelf.0.lock().0.machines.is_empty(),
        "nothing was bought"
    );
}

#[tokio::test]
async fn spot_costs_less_until_the_market_says_otherwise() {
    let cloud = Cloud::new();
    let mut launch = wanted(&cloud, "L4", true).await;
    launch.max_price = Decimal::new(25, 2);
    let machine = cloud.fake.launch(&launch).await.expect("a machine");
    assert_eq!(machine.price, Some(Decimal::new(20, 2)));
    cloud.script(|script| script.spot_factor = Decimal::TWO);
    let refused = cloud.fake.launch(&launch).await.expect_err("outbid");
    assert_eq!(refused.class, Class::NoCapacity);
    let not_sold = wanted(&cloud, "A40", true).await;
    let refused = cloud.fake.launch(&not_sold).await.expect_err("not sold");
    assert_eq!(refused.class, Class::Refused);
}

#[tokio::test]
async fn every_offer_makes_sense_and_has_a_model_of_the_catalogue() {
    let cloud = Cloud::new();
    let offers = cloud.fake.offers().await.expect("offers");
    assert!(offers.len() > 60);
    for offer in offers {
        assert_eq!(offer.nonsense(), None, "{offer:?}");
        assert_eq!(
            crate::offer::model(&offer.gpu, None),
            Some(offer.gpu.as_str())
        );
        assert!(crate::offer::area(&offer.region).is_some());
    }
}

#[tokio::test]
async fn a_spot_machine_is_told_before_it_is_taken_back_and_one_on_demand_is_left() {
    let cloud = Cloud::new();
    let spot = wanted(&cloud, "L40S", true).await;
    let taken = cloud.fake.launch(&spot).await.expect("a machine");
    let kept = wanted(&cloud, "L40S", false).await;
    let kept = cloud.fake.launch(&kept).await.expect("a machine");
    cloud.pass(10);
    cloud.script(|script| script.interrupt = vec!["L40S".to_owned()]);
    let seen = cloud.fake.status(&taken.id).await.expect("an answer");
    let seen = seen.expect("it runs");
    assert_eq!(seen.state, State::Running);
    assert_eq!(seen.taken_back, Some(later(cloud.now(), 120)));
    let seen = cloud.fake.status(&kept.id).await.expect("an answer");
    assert_eq!(seen.expect("it runs").taken_back, None);
    cloud.pass(119);
    let seen = cloud.fake.status(&taken.id).await.expect("an answer");
    assert_eq!(seen.expect("it still runs").state, State::Running);
    cloud.pass(1);
    let seen = cloud.fake.status(&taken.id).await.expect("an answer");
    assert_eq!(seen.expect("its end is remembered").state, State::Gone);
}

#[tokio::test]
async fn a_machine_that_is_taken_back_may_be_given_back_before() {
    let cloud = Cloud::new();
    let spot = wanted(&cloud, "L40S", true).await;
    let taken = cloud.fake.launch(&spot).await.expect("a machine");
    cloud.pass(10);
    cloud.script(|script| script.interrupt = vec![spot.name.clone()]);
    cloud.fake.status(&taken.id).await.expect("an answer");
    cloud.fake.terminate(&taken.id).await.expect("told");
    cloud.pass(2);
    let seen = cloud.fake.status(&taken.id).await.expect("an answer");
    assert_eq!(seen.expect("its end is remembered").state, State::Gone);
}

#[tokio::test]
async fn a_container_ends_as_its_command_says_and_costs_until_it_is_ended() {
    for (command, lasts, code) in [
        (vec!["sh", "-c", "sleep 90; exit 3"], 90, 3),
        (vec!["sleep", "20"], 20, 0),
        (vec!["train.py"], 60, 0),
    ] {
        let cloud = Cloud::new();
        let mut launch = wanted(&cloud, "L4", false).await;
        launch.container = Some(Container {
            image: "i:1".to_owned(),
            args: command.iter().map(|word| (*word).to_owned()).collect(),
            ..Container::default()
        });
        let bought = cloud.fake.launch(&launch).await.expect("a container");
        let seen = async || {
            let found = cloud.fake.status(&bought.id).await.expect("an answer");
            found.expect("a container")
        };
        cloud.pass(5);
        assert_eq!(
            (seen().await.state, seen().await.exit),
            (State::Running, None)
        );
        cloud.pass(lasts);
        let over = seen().await;
        assert_eq!(over.state, State::Stopped, "{command:?}");
        assert_eq!(
            over.exit.and_then(|exit| exit.code),
            Some(code),
            "{command:?}"
        );
        let before = cloud.shelf.0.lock().0.bill(cloud.now());
        cloud.pass(3600);
        let after = cloud.shelf.0.lock().0.bill(cloud.now());
        assert_eq!(
            after - before,
            launch.offer.price,
            "one that ended costs until it is ended"
        );
        cloud.fake.terminate(&bought.id).await.expect("the end");
        cloud.pass(10);
        assert_eq!(seen().await.state, State::Gone);
    }
}
