//! `warp model export` and `import`: a model as one file, for machines without a network.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use warp_fetch::{Hub, Report, bundle};

use crate::commands::fetch::cache;
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct ExportArgs {
    /// A model that `warp fetch` has completed: `ORG/NAME[@REVISION]`
    #[arg(value_name = "MODEL")]
    model: String,
    /// The file to write, `-` for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cache it is in [default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ImportArgs {
    /// A file that `warp model export` wrote, `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cache it goes to [default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub(crate) fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let name = args.model.strip_prefix("hf://").unwrap_or(&args.model);
    let Some(model) = Hub::parse(name) else {
        bail!(
            "'{}' is no model such as org/name or org/name@v1",
            args.model
        );
    };
    let from = cache(args.from.as_ref())?;
    if args.file == Path::new("-") {
        if std::io::stdout().is_terminal() {
            bail!("a bundle is not for a terminal: name a file, or send it on with |");
        }
        let mut out = BufWriter::new(std::io::stdout().lock());
        let report = bundle::export(&from, &model, &mut out)?;
        tell("exported", &report);
        return Ok(ExitCode::SUCCESS);
    }
    // It gets its name when it is whole.
    let mut beside = args.file.clone().into_os_string();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = write(&beside, &from, &model)
        .and_then(|report| {
            let renamed = std::fs::rename(&beside, &args.file);
            renamed.with_context(|| format!("failed to write {}", args.file.display()))?;
            Ok(report)
        })
        .inspect_err(|_| {
            // What is left of it is of no use.
            let _ = std::fs::remove_file(&beside);
        })?;
    tell("exported", &written);
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, from: &Path, model: &Hub) -> anyhow::Result<Report> {
    let file = File::create(path).with_context(|| format!("failed to write {}", path.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let report = bundle::export(from, model, &mut out)?;
    out.flush()?;
    out.get_ref().sync_all()?;
    Ok(report)
}

pub(crate) fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let to = cache(args.to.as_ref())?;
    let mut input: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file = File::open(&args.file)
            .with_context(|| format!("failed to read {}", args.file.display()))?;
        Box::new(BufReader::with_capacity(1 << 20, file))
    };
    let report = bundle::import(&mut input, &to)?;
    tell("imported", &report);
    output::line(&to.join(&report.path).display().to_string());
    Ok(ExitCode::SUCCESS)
}

fn tell(done: &str, report: &Report) {
    output::note(&format!(
        "{done} {} {} at {}: {} files, {} bytes, verified",
        report.name, report.revision, report.commit, report.files, report.bytes
    ));
}
