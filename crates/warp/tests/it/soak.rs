//! Soak: random load and random faults for as long as told, on `warp up` and on a real control plane.
//!
//! Users submit, change, suspend, resume and delete workloads that succeed, fail and hang; meanwhile
//! the operator (or the whole engine) is killed, nodes fall silent, and the API server refuses, delays
//! and forgets what the operators ask for. At every moment no node holds more GPUs than it has and no
//! workload runs twice on nodes that answer; no kind of object becomes more and more; in the end
//! nothing is left, and after a long soak memory is where it was.
//!
//! `WARP_SOAK_SECONDS` says how long (`make soak`: half an hour each); `WARP_SOAK_SEED` repeats a run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod census;
mod engine;
mod judge;
mod load;
mod plane;
mod weather;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Client;
use warp_core::random::Random;
use warp_testkit::{PATIENCE, until};

use census::Census;
use engine::Engine;
use judge::Judge;
use load::Load;
use plane::ControlPlane;

/// How long each of the two lasts in `make test`.
const SHORT: u64 = 40;
/// Shorter than this, what memory does says nothing about leaks.
const LONG: Duration = Duration::from_mins(10);
/// Faults in each half of a short soak; a long one has one every eight seconds.
const TROUBLES: u32 = 8;
const TROUBLE: Duration = Duration::from_secs(8);
/// Objects are counted so often in each of the two stretches that are compared.
const COUNTS: u32 = 6;

fn length() -> Duration {
    Duration::from_secs(setting("WARP_SOAK_SECONDS", SHORT))
}

/// Short, so that as many Events go as come long before anything is compared.
fn events_kept() -> Duration {
    Duration::from_secs((length().as_secs() / 10).max(5))
}

fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What may break at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    /// Anything, processes included.
    Rough,
    /// Nothing that ends a process, whose memory could not be compared then.
    Calm,
}

/// Where the soak happens: something to talk to, to trouble and to measure.
trait Place: Send + Sync {
    /// A client of the cluster as it is now.
    fn client(&self) -> Client;
    /// The processes whose memory must stay flat.
    fn pids(&self) -> Vec<u32>;
    /// Does something a cluster has to live with.
    fn trouble(
        &self,
        half: Half,
        random: &mut Random,
    ) -> impl Future<Output = Result<&'static str>> + Send;
    /// Fails when a process has ended that nobody ended.
    fn stands(&self) -> impl Future<Output = Result<()>> + Send;
    /// Undoes whatever of the troubles lasts.
    fn heal(&self) -> impl Future<Output = Result<()>> + Send;
    /// What was done to requests, and what was wrong with them.
    fn requests(&self) -> Result<String>;
    fn log(&self) -> String;
}

/// One soak as it goes on.
struct Soak {
    random: Random,
    load: Load,
    judge: Judge,
    census: Census,
    troubles: BTreeMap<&'static str, u32>,
    started: Instant,
    length: Duration,
}

impl Soak {
    /// From 0 to 1.
    fn progress(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / self.length.as_secs_f64()
    }

    async fn goes_on(&mut self, place: &impl Place) -> Result<()> {
        let pace = TROUBLE.min(self.length / 2 / TROUBLES);
        let often = self.length.mul_f64(judge::STRETCH) / COUNTS;
        let (mut troubled, mut counted) = (Instant::now(), Instant::now());
        while self.progress() < 1.0 {
            let client = place.client();
            self.load.step(&client).await;
            let wrong = self.judge.look(&client).await;
            ensure!(wrong.is_empty(), "{}", wrong.join("; "));
            place.stands().await?;
            for pid in place.pids() {
                self.judge.memory(pid, self.progress());
            }
            if self.progress() > judge::FULL && counted.elapsed() > often {
                counted = Instant::now();
                if self.census.take(&client, self.progress()).await.is_err() {
                    self.judge.missed();
                }
            }
            if troubled.elapsed() > pace {
                let half = if self.progress() < 0.5 {
                    Half::Rough
                } else {
                    Half::Calm
                };
                let what = place.trouble(half, &mut self.random).await?;
                *self.troubles.entry(what).or_default() += 1;
                troubled = Instant::now();
            }
        }
        Ok(())
    }

    /// Lets everything end and go.
    async fn ends(&mut self, place: &impl Place) -> Result<()> {
        place.heal().await?;
        let client = place.client();
        let gone = until("every workload is gone", PATIENCE, || async {
            place.stands().await?;
            self.load.finish(&client).await.or(Ok(None))
        });
        if let Err(error) = gone.await {
            let left = self.load.left(&client).await?;
            return Err(error.context(left.join("\n")));
        }
        until("nothing is left", PATIENCE, || async {
            place.stands().await?;
            let left = judge::left(&client).await;
            Ok(left.is_ok_and(|left| left.is_empty()).then_some(()))
        })
        .await?;
        self.census.take(&client, f64::INFINITY).await
    }
}

async fn soak(place: impl Place, name: &str) -> Result<()> {
    let (length, seed) = (length(), setting("WARP_SOAK_SEED", 7));
    let mut soak = Soak {
        random: Random::new(seed),
        load: Load::new(Random::new(seed + 1)),
        judge: Judge::default(),
        census: Census::of(&place.client()).await?,
        troubles: BTreeMap::new(),
        started: Instant::now(),
        length,
    };
    let run = async {
        soak.goes_on(&place).await?;
        soak.ends(&place).await
    };
    run.await
        .with_context(|| format!("{name}, seed {seed}\n{}", place.log()))?;
    let memory = soak.judge.flat(length >= LONG)?;
    let objects = soak.census.judge()?;
    let looks = soak.judge.looked()?;
    let load = soak.load.judge()?;
    eprintln!(
        "soak {name}: {} s, seed {seed}, {load}, {looks}, troubles {:?}, {}{memory}, {objects}, 0 violations, 0 objects left",
        length.as_secs(),
        soak.troubles,
        place.requests()?,
    );
    Ok(())
}

fn tail(path: &std::path::Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_under_load_and_faults_stays_right_and_small() {
    soak(Engine::start().await.unwrap(), "warp up")
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_under_load_and_faults_stays_right_and_small() {
    soak(ControlPlane::start().await.unwrap(), "control plane")
        .await
        .unwrap();
}
