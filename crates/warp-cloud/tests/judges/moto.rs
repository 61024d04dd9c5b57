//! EC2 by moto: every form that Warp sends is understood there, and what it stores is what was meant. Idempotency, spot
//! prices and the price list are our own judge's: moto does not know them well enough.

use std::collections::BTreeMap;
use std::sync::Arc;

use warp_cloud::{
    Account, Availability, Decimal, Kind, Launch, Network, Offer, Provider, Secret, Settings,
    State, open,
};

use super::{say, told};

const MARK: &str = "warp-5f0c2a9e-";

fn account(regions: &[&str]) -> Account {
    let secrets = [
        ("accessKeyId", "AKIDOFTHETESTS".to_owned()),
        ("secretAccessKey", "key-of-the-tests-0001".to_owned()),
        ("endpoint", told("WARP_MOTO")),
        (
            "userData",
            "#cloud-config\nhostname: '{{name}}'\n".to_owned(),
        ),
    ];
    let secrets: BTreeMap<String, Secret> = secrets
        .into_iter()
        .map(|(key, value)| (key.to_owned(), Secret::new(value)))
        .collect();
    Account {
        kind: Kind::Aws,
        regions: regions.iter().map(|region| (*region).to_owned()).collect(),
        secrets,
        settings: Settings {
            image: Some(told("WARP_MOTO_IMAGE")),
            ssh_key: Some("warp".to_owned()),
            network: Some(told("WARP_MOTO_SUBNET")),
            security_group: Some(told("WARP_MOTO_GROUP")),
            disk_gib: Some(100),
            ..Settings::default()
        },
    }
}

fn launch(number: u32, spot: bool) -> Launch {
    Launch {
        name: format!("{MARK}0b7a1c7e-8d0e-4f43-9d0f-0a4b6f9f2d11-{number}"),
        offer: Offer {
            gpu: "L4".to_owned(),
            gpus: 1,
            region: "us-east-1".to_owned(),
            instance_type: "g6.xlarge".to_owned(),
            price: Decimal::new(80, 2),
            spot_price: Some(Decimal::new(31, 2)),
            availability: Availability::Unknown,
        },
        spot,
        max_price: Decimal::ONE,
        owner: "team/h100".to_owned(),
        lifetime_seconds: Some(7200),
        image: None,
        user_data: None,
        join: None,
        container: None,
    }
}

async fn state(cloud: &dyn Provider, id: &str) -> Option<State> {
    let seen = cloud.status(id).await.expect("an answer");
    seen.map(|machine| machine.state)
}

#[tokio::test]
async fn moto_understands_what_is_asked_of_ec2() {
    let network = Arc::new(Network::new().expect("a network"));
    let now = Arc::new(jiff::Timestamp::now);
    let cloud = open(account(&["us-east-1"]), network.clone(), now.clone()).expect("an account");
    let mut asked = 0;
    let mut ids = Vec::new();
    for (number, spot) in [(1, false), (2, true)] {
        let wanted = launch(number, spot);
        let bought = cloud.launch(&wanted).await.expect("a machine");
        let listed = cloud.machines(MARK, &[]).await.expect("a list");
        let found = listed.iter().find(|one| one.name == wanted.name);
        let found = found.unwrap_or_else(|| panic!("{} is not in {listed:?}", wanted.name));
        assert_eq!(found.id, bought.id);
        assert_eq!((found.spot, &*found.instance_type), (spot, "g6.xlarge"));
        assert_eq!(state(&*cloud, &bought.id).await, Some(State::Running));
        asked += 3;
        ids.push(bought.id);
    }
    // The region has left the account: its machines are found where they were bought, and only there.
    let moved = open(account(&["eu-west-1"]), network, now).expect("an account");
    assert_eq!(moved.machines(MARK, &[]).await.expect("a list"), Vec::new());
    let also = ["us-east-1".to_owned()];
    assert_eq!(moved.machines(MARK, &also).await.expect("a list").len(), 2);
    asked += 3;
    for id in &ids {
        moved.terminate(id).await.expect("the end");
        let over = state(&*moved, id).await;
        assert!(
            matches!(over, None | Some(State::Gone | State::Terminating)),
            "{over:?}"
        );
        asked += 2;
    }
    assert_eq!(cloud.machines(MARK, &[]).await.expect("a list"), Vec::new());
    let nobodys = "us-east-1:i-0123456789abcdef0";
    assert_eq!(cloud.status(nobodys).await.expect("an answer"), None);
    cloud.terminate(nobodys).await.expect("nothing to end");
    asked += 3;
    say(&format!(
        "{asked} requests to EC2 understood by moto, 0 refused"
    ));
}
