//! The same over a real connection: the address of a mirror, connections that break, and one that is not there.

use std::sync::Arc;

use warp_cloud::{Class, Network, Secret, open};
use warp_vendor::{Brand, Trouble, Vendor};

use super::stand::{MARK, account};

#[tokio::test]
async fn a_mirror_is_asked_over_the_network() {
    let vendor = Vendor::new(Brand::Runpod);
    let server = vendor.serve().await.expect("a server");
    let mut account = account(Brand::Runpod);
    account
        .secrets
        .insert("endpoint".to_owned(), Secret::new(server.address()));
    let network = Arc::new(Network::new().expect("a network"));
    let now = Arc::new(jiff::Timestamp::now);
    let provider = open(account.clone(), network.clone(), now.clone()).expect("an account");
    assert_eq!(provider.machines(MARK, &[]).await, Ok(Vec::new()));
    vendor.once("DELETE", Trouble::HangUp);
    provider
        .terminate("1")
        .await
        .expect("asked again after the connection broke");
    assert_eq!(vendor.complaints(), Vec::<String>::new());
    drop(server);
    let closed = open(account, network, now).expect("an account");
    let failure = closed.terminate("1").await.expect_err("nobody there");
    assert_eq!(failure.class, Class::Transient, "{failure}");
}
