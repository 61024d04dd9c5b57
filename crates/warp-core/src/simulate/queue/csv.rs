//! Job lists as CSV. The header names the columns, in any order; Philly's names are known. A bad
//! row is reported with its line and does not spoil the others.

use crate::queue::Shape;

use super::Submission;

/// A row that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct BadRow {
    pub line: usize,
    pub reason: String,
}

/// Why a file is no job list at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    #[error("failed to read job list: it is empty")]
    Empty,
    #[error(
        "failed to read job list: no column for {what} (one of {names} is needed in the header)"
    )]
    NoColumn { what: &'static str, names: String },
}

const SUBMIT: [&str; 4] = ["submit", "timestamp", "submit_time", "arrival"];
const DURATION: [&str; 3] = ["duration", "run_time", "runtime"];
const GPUS: [&str; 4] = ["gpus", "num_gpus", "gpu_num", "gpu_count"];
const MEMBERS: [&str; 3] = ["members", "replicas", "num_workers"];
const TENANT: [&str; 4] = ["tenant", "cluster", "vc", "user"];
const MODEL: [&str; 1] = ["model"];
const IMAGE: [&str; 1] = ["image"];
const TYPES: [&str; 3] = ["gpu_types", "gpu_type", "gpu_spec"];
const PRIORITY: [&str; 1] = ["priority"];
const PREEMPTIBLE: [&str; 2] = ["preemptible", "checkpoint"];

struct Columns {
    submit: usize,
    duration: usize,
    gpus: usize,
    members: Option<usize>,
    tenant: Option<usize>,
    model: Option<usize>,
    image: Option<usize>,
    types: Option<usize>,
    priority: Option<usize>,
    preemptible: Option<usize>,
}

impl Columns {
    fn of(header: &[String]) -> Result<Self, CsvError> {
        let find = |names: &[&str]| {
            names
                .iter()
                .find_map(|n| header.iter().position(|h| h.eq_ignore_ascii_case(n)))
        };
        let must = |what, names: &[&str]| {
            find(names).ok_or_else(|| CsvError::NoColumn {
                what,
                names: names.join(", "),
            })
        };
        Ok(Self {
            submit: must("the time of submission", &SUBMIT)?,
            duration: must("the duration", &DURATION)?,
            gpus: must("the number of GPUs", &GPUS)?,
            members: find(&MEMBERS),
            tenant: find(&TENANT),
            model: find(&MODEL),
            image: find(&IMAGE),
            types: find(&TYPES),
            priority: find(&PRIORITY),
            preemptible: find(&PREEMPTIBLE),
        })
    }
}

/// The jobs of a CSV text, in its order, and the rows that were not understood.
pub fn parse(text: &str) -> Result<(Vec<Submission>, Vec<BadRow>), CsvError> {
    let mut lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or(CsvError::Empty)?;
    let header = fields(header.trim_start_matches('\u{feff}')).map_err(|_| CsvError::Empty)?;
    let columns = Columns::of(&header)?;
    let (mut jobs, mut bad) = (Vec::new(), Vec::new());
    for (line, text) in lines {
        let row = fields(text).and_then(|row| {
            if row.len() == header.len() {
                return submission(line, &columns, &row);
            }
            Err(format!(
                "{} fields, the header has {}",
                row.len(),
                header.len()
            ))
        });
        match row {
            Ok(job) => jobs.push(job),
            Err(reason) => bad.push(BadRow { line, reason }),
        }
    }
    Ok((jobs, bad))
}

fn submission(line: usize, columns: &Columns, row: &[String]) -> Result<Submission, String> {
    let text = |column: Option<usize>| {
        column
            .map(|c| row[c].trim())
            .filter(|t| !t.is_empty())
            .map(str::to_owned)
    };
    let gpus: u32 = number(&row[columns.gpus], "GPUs")?;
    let shape = match text(columns.members) {
        None => Shape::Gpus(gpus),
        Some(members) => Shape::Members {
            count: number(&members, "members")?,
            gpus,
        },
    };
    let types = text(columns.types)
        .map(|list| list.split('|').map(|t| t.trim().to_owned()).collect())
        .unwrap_or_default();
    let priority = text(columns.priority).map_or(Ok(0), |p| number(&p, "priority"))?;
    let preemptible = text(columns.preemptible).map(|p| truth(&p)).transpose()?;
    let job = Submission {
        line,
        submit: moment(&row[columns.submit])?,
        duration: number(&row[columns.duration], "duration")?,
        shape,
        types,
        priority,
        preemptible,
        tenant: text(columns.tenant),
        model: text(columns.model),
        image: text(columns.image),
    };
    sound(&job)?;
    Ok(job)
}

/// What every job must satisfy, wherever it came from.
pub fn sound(job: &Submission) -> Result<(), String> {
    if !job.submit.is_finite() || job.submit.abs() > 1e12 {
        return Err(format!("submission time {} is not a time", job.submit));
    }
    if !job.duration.is_finite() || job.duration < 0.0 || job.duration > 1e10 {
        return Err(format!(
            "duration {} is not a number of seconds",
            job.duration
        ));
    }
    if job.shape.gpus() == 0 {
        return Err("asks for no GPU".to_owned());
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{what} {text:?} is not a number it can be"))
}

fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err(format!("preemptible {text:?} is neither true nor false")),
    }
}

/// Seconds since some epoch: a number, or `YYYY-MM-DD HH:MM:SS` (a `T` and a `Z` are allowed),
/// read as UTC.
pub fn moment(text: &str) -> Result<f64, String> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Ok(seconds);
    }
    civil(text).ok_or_else(|| format!("time {text:?} is neither seconds nor YYYY-MM-DD HH:MM:SS"))
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
    let month_index = usize::try_from(month).ok()?.checked_sub(1)?;
    let valid = (1900..10_000).contains(&year)
        && (1..=*lengths.get(month_index)?).contains(&day)
        && (0.0..24.0).contains(&hour)
        && (0.0..60.0).contains(&minute)
        && (0.0..61.0).contains(&second);
    if !valid {
        return None;
    }
    let years = year - 1;
    let before = years * 365 + years / 4 - years / 100 + years / 400;
    let days = before + lengths[..month_index].iter().sum::<i64>() + day - 1 - 719_162;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Splits one line; quotes hold commas, a doubled quote is a quote.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let field = fields.last_mut().expect("there is always a current field");
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                field.push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(letter),
        }
    }
    if quoted {
        Err("a quote is not closed".to_owned())
    } else {
        Ok(fields)
    }
}
