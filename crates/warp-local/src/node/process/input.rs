//! The standard input of a container that asked for one: a named pipe in the pod's folder. The supervisor
//! keeps it open, so that it outlives whoever attached; with `stdinOnce` it is closed behind the first.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::wire::{Launch, Request, Stdin};

fn path(folder: &Path, launch: &Launch) -> PathBuf {
    folder.join(format!("stdin.{}.{}", launch.container, launch.attempt))
}

/// Makes the pipe: the end the container reads, and the one that keeps it open.
pub(super) fn make(folder: &Path, launch: &Launch) -> io::Result<(File, File)> {
    let path = path(folder, launch);
    std::fs::remove_file(&path).ok();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0)?;
    let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
    // The reader first, and without waiting for a writer, who then finds it.
    let read = open(OFlags::RDONLY | OFlags::NONBLOCK)?;
    let write = open(OFlags::WRONLY)?;
    rustix::fs::fcntl_setfl(&read, OFlags::empty())?;
    Ok((read.into(), write.into()))
}

/// Passes on what somebody types who has attached.
pub(super) async fn feed(folder: PathBuf, launch: Launch, mut typed: DuplexStream) {
    if let Ok(mut to) = pipe::OpenOptions::new().open_sender(path(&folder, &launch)) {
        tokio::io::copy(&mut typed, &mut to).await.ok();
    }
    if launch.stdin == Some(Stdin::Once)
        && let Ok(mut supervisor) = UnixStream::connect(folder.join("socket")).await
    {
        let request = Request::CloseInput {
            container: launch.container,
            attempt: launch.attempt,
        };
        let mut line = serde_json::to_vec(&request).unwrap_or_default();
        line.push(b'\n');
        supervisor.write_all(&line).await.ok();
        supervisor.shutdown().await.ok();
        // It first tells all it knows: hanging up before that is read would cost it our line.
        tokio::io::copy(&mut supervisor, &mut tokio::io::sink())
            .await
            .ok();
    }
}
