#![allow(clippy::disallowed_methods)]
use warp_core::queue::{self, Pool};
use warp_core::simulate::queue::*;
fn main() {
    let args: std::collections::BTreeMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|a| a.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    let get = |k: &str, d: f64| args.get(k).map_or(d, |v| v.parse().unwrap());
    let text = std::fs::read_to_string("/work/shared/data/philly/philly.csv").unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let jobs: Vec<Submission> = lines
        .enumerate()
        .map(|(i, l)| {
            let f: Vec<&str> = l.split(',').collect();
            row::submission(i + 2, &|n| {
                head.iter().position(|h| *h == n).map(|k| f[k].to_owned())
            })
            .unwrap()
        })
        .collect();
    let bad: Vec<u8> = vec![];
    let win = trace::busiest(&jobs, 56);
    let mut jobs = trace::in_order(&jobs);
    let rep = get("rep", 0.0) as u64;
    if rep > 0 {
        jobs = trace::shuffle_days(&jobs, win, rep);
    }
    eprintln!("{} jobs, {} bad", jobs.len(), bad.len());
    let mut s = Settings {
        preemptible: get("p", 0.0),
        probes: get("probes", 0.0) as usize,
        window: Some(win),
        ..Settings::default()
    };
    s.progress = args.get("progress").map(|v| v.parse().unwrap());
    s.forecaster.group_sigma = get("gs", s.forecaster.group_sigma);
    s.forecaster.shared_sigma = get("ss", s.forecaster.shared_sigma);
    s.along = get("along", 0.0) > 0.0;
    s.forecaster.report_sigma = get("rs", 0.15);
    s.forecaster.levels = [get("lo", 0.1), get("mid", 0.5), get("hi", 0.9)];
    for p in args.get("policy").map_or("warp", |s| s.as_str()).split(',') {
        for n in args.get("nodes").map_or("81", |s| s.as_str()).split(',') {
            let policy: Box<dyn queue::Policy> = if p == "warp" {
                let mut t = queue::warp::Tuning::default();
                t.patience = get("patience", t.patience / 3600.) * 3600.;
                t.setback_cap = get("cap", t.setback_cap / 3600.) * 3600.;
                t.grace = get("grace", t.grace / 3600.) * 3600.;
                t.per_attained = get("pa", t.per_attained);
                t.may_evict_after = get("ea", t.may_evict_after / 60.) * 60.;
                t.setback = get("sb", 1.0);
                t.width_power = get("wp", 1.0);
                t.long = get("long", t.long / 3600.) * 3600.;
                t.long_q = get("longq", t.long_q);
                t.terms.factor = get("factor", t.terms.factor);
                t.terms.min_run = get("minrun", t.terms.min_run / 3600.) * 3600.;
                Box::new(queue::warp::Warp::new(t))
            } else {
                queue::named(p).unwrap()
            };
            let t0 = std::time::Instant::now();
            let out = run(
                &jobs,
                &Pool::uniform(n.parse().unwrap(), 8),
                policy.as_ref(),
                &s,
                &mut |_| {},
            );

            let r = Report::of(p, &out, t0.elapsed().as_secs_f64());
            if s.probes > 0 {
                for m in [probe::Moment::Submission, probe::Moment::HalfWay] {
                    if !s.along && m == probe::Moment::HalfWay {
                        continue;
                    }
                    let mut l: Vec<f64> = out
                        .probes
                        .iter()
                        .filter(|x| x.moment == m)
                        .map(|x| (x.middle / x.actual).ln())
                        .collect();
                    l.sort_by(f64::total_cmp);
                    let lo = out
                        .probes
                        .iter()
                        .filter(|x| x.moment == m && x.actual < x.low)
                        .count();
                    let hi = out
                        .probes
                        .iter()
                        .filter(|x| x.moment == m && x.actual > x.high)
                        .count();
                    println!(
                        "  {m:?} ln(mid/act) q10 {:.2} q25 {:.2} q50 {:.2} q75 {:.2} q90 {:.2}; below {lo} above {hi} of {}",
                        l[l.len() / 10],
                        l[l.len() / 4],
                        l[l.len() / 2],
                        l[l.len() * 3 / 4],
                        l[l.len() * 9 / 10],
                        l.len()
                    );
                }
            }
            println!(
                "{p:9} n={n} jct {:.2} wait {:.3}/{:.1} wide {:.1}/{:.0} first {:.3}/{:.3} wide {:.3}/{:.2} slow {:.0} lost {:.4} util {:.3} ev {} deep {} | eta {:.3}/{:.2} half {:.3}/{:.2} late {:.3}/{:.2} n {} naive {:.2} {:.2} | {:.1}s",
                r.jct.mean,
                r.wait.mean,
                r.wait.p99,
                r.wait_wide.mean,
                r.wait_wide.p99,
                r.first_start.all.mean,
                r.first_start.all.p99,
                r.first_start.wide.mean,
                r.first_start.wide.p99,
                r.worst_slowdown,
                r.lost_fraction,
                r.utilisation,
                r.evictions,
                out.deepest,
                r.eta.at_submission.median_rel_error,
                r.eta.at_submission.covered_by_80,
                r.eta.half_way.median_rel_error,
                r.eta.half_way.covered_by_80,
                r.eta.late.median_rel_error,
                r.eta.late.covered_by_80,
                r.eta.at_submission.asked,
                r.eta.at_submission.naive_last_hour,
                r.eta.at_submission.naive_queue_service,
                r.seconds
            );
        }
    }
}
