//! Everything the suite asks, and everything the judges answer, against the vendors' own descriptions where they are at
//! hand. They are not part of this repository: without them the judges' own rules are all there is.

use std::path::PathBuf;

use serde_json::Value;
use warp_vendor::{Brand, Recorded};

use super::schema::{Description, Problem};
use super::stand::Stand;

/// Where the descriptions are.
fn folder() -> PathBuf {
    std::env::var_os("WARP_PROVIDER_APIS").map_or_else(
        || {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../../shared/data/provider-apis"
            ))
        },
        PathBuf::from,
    )
}

fn read(brand: Brand) -> Option<Description> {
    let file = match brand {
        Brand::Lambda => "lambda-cloud.openapi.json",
        Brand::Runpod => "runpod-v2.openapi.json",
        Brand::Vast => "vast.openapi.yaml",
        _ => return None,
    };
    let text = std::fs::read_to_string(folder().join(file)).ok()?;
    let root: Value = match brand {
        Brand::Vast => serde_saphyr::from_str(&text).expect("YAML"),
        _ => serde_json::from_str(&text).expect("JSON"),
    };
    Some(Description::new(root))
}

/// Everything a provider asks, in all the ways it can be asked.
async fn traffic(stand: &Stand) -> Vec<Recorded> {
    let provider = &stand.provider;
    let mut launch = stand.launch(1).await;
    let bought = provider.launch(&launch).await.expect("a machine");
    provider.machines("warp-", &[]).await.expect("a list");
    provider.status(&bought.id).await.expect("a machine");
    provider.status("404").await.expect("an answer");
    provider.terminate(&bought.id).await.expect("the end");
    stand.vendor.script(|script| script.sold_out = true);
    launch.name.push('2');
    provider.launch(&launch).await.expect_err("sold out");
    stand
        .vendor
        .script(|script| "another".clone_into(&mut script.key));
    provider
        .machines("warp-", &[])
        .await
        .expect_err("a stranger");
    stand.vendor.recorded()
}

#[tokio::test(start_paused = true)]
async fn requests_and_answers_are_as_the_vendors_describe_them() {
    let mut judged = 0;
    for stand in Stand::every() {
        let Some(description) = read(stand.brand) else {
            continue;
        };
        for record in traffic(&stand).await {
            let problems = description.judge(&record);
            assert_eq!(
                problems,
                Vec::<Problem>::new(),
                "{:?} {record:#?}",
                stand.brand
            );
            judged += 1;
        }
    }
    // Said so that nobody takes silence for a judgement.
    let words = if judged == 0 {
        "no descriptions at hand: only the judges' own rules were applied".to_owned()
    } else {
        format!("{judged} requests and answers judged by the vendors' own descriptions")
    };
    std::io::Write::write_all(&mut std::io::stderr(), format!("{words}\n").as_bytes())
        .expect("said");
}
