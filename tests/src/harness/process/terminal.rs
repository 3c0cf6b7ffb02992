//! A program whose standard error is a terminal, as when a person runs it.

use std::{fs::File, io::Read, os::unix::ffi::OsStringExt, os::unix::fs::OpenOptionsExt};

use anyhow::{Context, Result};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{task::spawn_blocking, time::timeout};

use super::{PATIENCE, Program};

/// What was seen of a program that ran on a terminal.
#[derive(Debug)]
pub struct Screen {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output, which is no terminal.
    pub stdout: String,
    /// What it wrote to the terminal, control sequences included.
    pub terminal: String,
}

impl Program {
    /// Runs it with a terminal of 100 columns for its standard error.
    ///
    /// # Errors
    /// When it cannot be run or does not end.
    pub async fn run_on_terminal(&self) -> Result<Screen> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 })?;
        let name = std::ffi::OsString::from_vec(ptsname(&ours, Vec::new())?.into_bytes());
        let no_controlling = i32::try_from(OpenptFlags::NOCTTY.bits())?;
        let theirs = File::options().read(true).write(true).custom_flags(no_controlling).open(name)?;
        let mut command = self.command().await?;
        command.env("TERM", "xterm").env_remove("NO_COLOR").stderr(theirs);
        let child = command.spawn().context("cannot run it")?;
        // The command holds a copy of the terminal, which would never end.
        drop(command);
        let terminal = spawn_blocking(move || {
            let (mut ours, mut seen, mut piece) = (File::from(ours), Vec::new(), [0; 4096]);
            // An error tells that nobody holds the other side any more.
            while let Ok(count @ 1..) = ours.read(&mut piece) {
                seen.extend_from_slice(&piece[..count]);
            }
            String::from_utf8_lossy(&seen).into_owned()
        });
        let ended = timeout(PATIENCE, child.wait_with_output()).await.context("it does not end")??;
        Ok(Screen {
            code: ended.status.code(),
            stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
            terminal: terminal.await?,
        })
    }
}
