//! A terminal for a command: the side a person sits at, as streams.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use crate::background;

const BUFFER: usize = 8192;

/// The near end of a terminal.
pub(super) struct Terminal {
    keys: pipe::Sender,
    screen: pipe::Receiver,
    size: File,
}

impl Terminal {
    /// A terminal, and the end a command gets as its three streams.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let name = ptsname(&near, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let far = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
        let known = rustix::fs::fcntl_getfl(&near)?;
        rustix::fs::fcntl_setfl(&near, known | OFlags::NONBLOCK)?;
        let near = File::from(near);
        // A terminal is read and written as a pipe is; it only does not call itself one.
        let terminal = Self {
            keys: pipe::Sender::from_file_unchecked(near.try_clone()?)?,
            screen: pipe::Receiver::from_file_unchecked(near.try_clone()?)?,
            size: near,
        };
        Ok((terminal, far))
    }

    /// What is typed, what is shown, and sizes (width, height).
    pub(super) fn streams(self) -> (DuplexStream, DuplexStream, mpsc::Sender<(u16, u16)>) {
        let Self {
            mut keys,
            mut screen,
            size,
        } = self;
        let (typed, mut from) = tokio::io::duplex(BUFFER);
        let (mut to, shown) = tokio::io::duplex(BUFFER);
        let (resize, mut sizes) = mpsc::channel(4);
        background::spawn(async move { tokio::io::copy(&mut from, &mut keys).await });
        background::spawn(async move {
            let mut buffer = vec![0; BUFFER];
            // An error is the end too: that of the last process that had it open.
            while let Ok(length @ 1..) = screen.read(&mut buffer).await {
                if to.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        });
        background::spawn(async move {
            while let Some((width, height)) = sizes.recv().await {
                let asked = Winsize {
                    ws_row: height,
                    ws_col: width,
                    ws_xpixel: 0,
                    ws_ypixel: 0,
                };
                tcsetwinsize(&size, asked).ok();
            }
        });
        (typed, shown, resize)
    }
}
