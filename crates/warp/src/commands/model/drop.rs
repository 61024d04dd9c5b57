//! `warp model drop`: what is below a folder goes, the folder itself stays, since it is where a volume is mounted.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The folder that is emptied
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("failed to read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("failed to read {}", folder.display()))?;
        let path = entry.path();
        // A link is removed, not what it leads to.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_below_goes_and_nothing_a_link_leads_to() {
        let place = tempfile::tempdir().unwrap();
        let (kept, dropped) = (place.path().join("kept"), place.path().join("dropped"));
        std::fs::create_dir_all(dropped.join("a/b")).unwrap();
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, dropped.join("link")).unwrap();
        run(&Args {
            folder: dropped.clone(),
        })
        .unwrap();
        assert_eq!(std::fs::read_dir(&dropped).unwrap().count(), 0);
        assert!(kept.join("file").exists());
        assert!(
            run(&Args {
                folder: place.path().join("none"),
            })
            .is_err()
        );
    }
}
