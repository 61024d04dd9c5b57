//! One row of a job list, whatever file it came from: fields by name, Philly's names among them.
//! A row that makes no sense gets a reason, never a guess.

use crate::queue::Shape;

use super::Submission;

const SUBMIT: [&str; 4] = ["submit", "timestamp", "submit_time", "arrival"];
const DURATION: [&str; 3] = ["duration", "run_time", "runtime"];
const GPUS: [&str; 4] = ["gpus", "num_gpus", "gpu_num", "gpu_count"];
const MEMBERS: [&str; 3] = ["members", "replicas", "num_workers"];
const TENANT: [&str; 4] = ["tenant", "cluster", "vc", "user"];
const TYPES: [&str; 3] = ["gpu_types", "gpu_type", "gpu_spec"];

/// Longest duration and latest time that is taken for one, seconds.
const LONGEST: f64 = 1e10;

/// The job of a row. `field` gives the text of a field, `None` where it is absent or empty.
pub fn submission(
    line: usize,
    field: &dyn Fn(&str) -> Option<String>,
) -> Result<Submission, String> {
    let any = |names: &[&str]| names.iter().find_map(|name| field(name));
    let must = |what: &str, names: &[&str]| {
        any(names).ok_or_else(|| format!("no {what} (a field {})", names.join(" or ")))
    };
    let gpus: u32 = number(&must("number of GPUs", &GPUS)?, "GPUs")?;
    let shape = match any(&MEMBERS) {
        None => Shape::Gpus(gpus),
        Some(members) => Shape::Members {
            count: number(&members, "members")?,
            gpus,
        },
    };
    if shape.gpus() == 0 {
        return Err("asks for no GPU".to_owned());
    }
    let submit = moment(&must("time of submission", &SUBMIT)?)?;
    let duration: f64 = number(&must("duration", &DURATION)?, "duration")?;
    if !(0.0..=LONGEST).contains(&duration) {
        return Err(format!("duration {duration} is no number of seconds"));
    }
    let types = any(&TYPES).unwrap_or_default();
    let types = types
        .split('|')
        .map(|t| t.trim().to_owned())
        .filter(|t| !t.is_empty());
    Ok(Submission {
        line,
        submit,
        duration,
        shape,
        types: types.collect(),
        priority: field("priority").map_or(Ok(0), |p| number(&p, "priority"))?,
        preemptible: field("preemptible").map(|p| truth(&p)).transpose()?,
        tenant: any(&TENANT),
        model: field("model"),
        image: field("image"),
    })
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{what} is {text:?}, expected a number"))
}

fn truth(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err(format!("preemptible is {text:?}, expected true or false")),
    }
}

/// Seconds since some epoch: a number, or `YYYY-MM-DD HH:MM:SS` (a `T` and a `Z` are allowed),
/// read as UTC.
pub fn moment(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| seconds.abs() <= LONGEST);
    seconds
        .or_else(|| civil(text))
        .ok_or_else(|| format!("time is {text:?}, expected seconds or YYYY-MM-DD HH:MM:SS"))
}

fn civil(text: &str) -> Option<f64> {
    let (date, time) = text
        .strip_suffix('Z')
        .unwrap_or(text)
        .split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':').map(str::parse::<f64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [
        31,
        if leap { 29 } else { 28 },
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    let valid = (1900..10_000).contains(&year)
        && (1..=*lengths.get(month)?).contains(&day)
        && (0.0..24.0).contains(&hour)
        && (0.0..60.0).contains(&minute)
        && (0.0..61.0).contains(&second);
    if !valid {
        return None;
    }
    // Days from the first of January of year 1, less those to 1970.
    let years = year - 1;
    let before = years * 365 + years / 4 - years / 100 + years / 400;
    let days = before + lengths[..month].iter().sum::<i64>() + day - 1 - 719_162;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{moment, submission};
    use crate::queue::Shape;

    fn row(fields: &[(&str, &str)]) -> Result<super::Submission, String> {
        submission(3, &|name| {
            fields
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn times_are_seconds_or_calendar_time() {
        assert_eq!(moment("12.5"), Ok(12.5));
        assert_eq!(moment("1970-01-02 00:00:01"), Ok(86_401.0));
        assert_eq!(moment("2017-10-09T07:01:55Z"), Ok(1_507_532_515.0));
        assert_eq!(moment("2000-02-29 00:00:00"), Ok(951_782_400.0));
        for bad in [
            "",
            "nan",
            "inf",
            "1e300",
            "2017-02-29 00:00:00",
            "2017-13-01 00:00:00",
            "2017-10-09",
        ] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_field_has_its_place() {
        let job = row(&[
            ("submit", "5"),
            ("runtime", "60"),
            ("gpus", "4"),
            ("replicas", "2"),
            ("user", "ann"),
            ("gpu_type", "A100|H100"),
            ("priority", "-3"),
            ("preemptible", "yes"),
        ])
        .unwrap();
        assert_eq!(job.shape, Shape::Members { count: 2, gpus: 4 });
        assert_eq!(
            (job.types.len(), job.priority, job.preemptible),
            (2, -3, Some(true))
        );
        assert_eq!(job.tenant.as_deref(), Some("ann"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let sound = [("submit", "0"), ("duration", "1"), ("gpus", "1")];
        assert!(row(&sound).is_ok());
        for (name, text) in [
            ("submit", "soon"),
            ("duration", "-1"),
            ("duration", "NaN"),
            ("gpus", "0"),
            ("gpus", "1.5"),
            ("gpus", "-1"),
        ] {
            let changed = sound.map(|(known, old)| (known, if known == name { text } else { old }));
            let reason = row(&changed).unwrap_err();
            assert!(reason.contains(text) || text == "0", "{reason}");
        }
        assert!(row(&sound[..2]).unwrap_err().contains("number of GPUs"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,20}", gpus in ".{0,6}") {
            let _ = row(&[("submit", &text), ("duration", &text), ("gpus", &gpus), ("members", &gpus)]);
        }
    }
}
