#![allow(clippy::disallowed_methods)]
use warp_core::simulate::queue::*;
use warp_core::queue::{self, Pool};
fn main() {
    let args: std::collections::BTreeMap<String,String> = std::env::args().skip(1).filter_map(|a| a.split_once('=').map(|(k,v)|(k.to_owned(),v.to_owned()))).collect();
    let get = |k: &str, d: f64| args.get(k).map_or(d, |v| v.parse().unwrap());
    let text = std::fs::read_to_string("/work/shared/data/philly/philly.csv").unwrap();
    let (jobs, bad) = csv::parse(&text).unwrap();
    let win = trace::busiest(&jobs, 56); let (w0,w1)=(win[0].submit, win[win.len()-1].submit); let mut jobs = if get("warm",0.0)>0.0 { trace::in_order(&jobs).into_iter().filter(|j| get("warm",0.0)>1.0 || j.submit<=w1).collect() } else { win };
    let rep = get("rep", 0.0) as u64;
    if rep > 0 { jobs = trace::shuffle_days(&jobs, rep); }
    eprintln!("{} jobs, {} bad", jobs.len(), bad.len());
    let mut s = Settings { preemptible: get("p", 0.0), probes: get("probes", 0.0) as usize, ..Settings::default() };
    s.progress = args.get("progress").map(|v| v.parse().unwrap());
    s.forecaster.group_sigma = get("gs", s.forecaster.group_sigma);
    s.forecaster.shared_sigma = get("ss", s.forecaster.shared_sigma);
    for p in args.get("policy").map_or("warp", |s| s.as_str()).split(',') {
        for n in args.get("nodes").map_or("81", |s| s.as_str()).split(',') {
            let policy: Box<dyn queue::Policy> = if p == "warp" {
                let mut t = queue::warp::Tuning::default();
                t.patience = get("patience", t.patience/3600.)*3600.;
                t.setback_cap = get("cap", t.setback_cap/3600.)*3600.;
                t.grace = get("grace", t.grace/3600.)*3600.;
                t.per_attained = get("pa", t.per_attained);
                t.may_evict_after = get("ea", t.may_evict_after/60.)*60.;
                t.terms.factor = get("factor", t.terms.factor);
                t.terms.min_run = get("minrun", t.terms.min_run/3600.)*3600.;
                Box::new(queue::warp::Warp::new(t))
            } else { queue::named(p).unwrap() };
            let t0 = std::time::Instant::now();
            let mut out = run(&jobs, &Pool::uniform(n.parse().unwrap(), 8), policy.as_ref(), &s, &mut |_| {});
            if rep==0 {out.fates.retain(|f| f.submit>=w0 && f.submit<=w1);}
            let r = Report::of(p, &out, t0.elapsed().as_secs_f64());
            println!("{p:9} n={n} jct {:.2} wait {:.3}/{:.1} wide {:.1}/{:.0} first {:.3}/{:.3} wide {:.3}/{:.2} slow {:.0} lost {:.4} util {:.3} ev {} deep {} | eta {:.3}/{:.2} half {:.3}/{:.2} late {:.3}/{:.2} n {} naive {:.2} {:.2} | {:.1}s",
              r.jct.mean, r.wait.mean, r.wait.p99, r.wait_wide.mean, r.wait_wide.p99, r.first_start.all.mean, r.first_start.all.p99, r.first_start.wide.mean, r.first_start.wide.p99, r.worst_slowdown, r.lost_fraction, r.utilisation, r.evictions, out.deepest,
              r.eta.at_submission.median_rel_error, r.eta.at_submission.covered_by_80, r.eta.half_way.median_rel_error, r.eta.half_way.covered_by_80, r.eta.late.median_rel_error, r.eta.late.covered_by_80, r.eta.at_submission.asked, r.eta.at_submission.naive_last_hour, r.eta.at_submission.naive_queue_service, r.seconds);
        }
    }
}
