//! The log file of an engine that may run for months: put aside when it is large, and only once.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;

const LARGEST: u64 = 16 << 20;

pub(super) struct Rotating {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Rotating {
    pub(super) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let (file, size) =
            append(&path).with_context(|| format!("failed to open the log {}", path.display()))?;
        Ok(Self { path, file, size })
    }

    fn turn_over(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
        (self.file, self.size) = append(&self.path)?;
        Ok(())
    }
}

fn append(path: &PathBuf) -> io::Result<(File, u64)> {
    let file = File::options().create(true).append(true).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Write for Rotating {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.size > LARGEST {
            self.turn_over()?;
        }
        let written = self.file.write(text)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
