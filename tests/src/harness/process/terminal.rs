//! Runs a program with a terminal as its standard error.

use std::{
    fs::File,
    io::Read,
    os::unix::{ffi::OsStringExt, fs::OpenOptionsExt},
    process::Stdio,
};

use anyhow::{Context, Result};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{task::spawn_blocking, time::timeout};

use super::{Log, Program, WAIT_TIMEOUT};

/// The output of a program that ran on a terminal.
#[derive(Debug)]
pub struct Screen {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// The lines that it wrote to standard output, which is not a terminal.
    pub stdout: Vec<String>,
    /// Its output to the terminal, including control sequences.
    pub terminal: String,
}

impl Program {
    /// Runs it with a terminal of 100 columns as its standard error.
    pub async fn run_on_terminal(&self) -> Result<Screen> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        tcsetwinsize(&controller, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 })?;
        let name = std::ffi::OsString::from_vec(ptsname(&controller, Vec::new())?.into_bytes());
        let no_controlling = i32::try_from(OpenptFlags::NOCTTY.bits())?;
        let theirs = File::options().read(true).write(true).custom_flags(no_controlling).open(name)?;
        let mut command = self.prepared().await?;
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdout(Stdio::piped()).stderr(theirs);
        let mut child = command.spawn()?;
        // The command holds the terminal, whose reader would never see its end.
        drop(command);
        let terminal = spawn_blocking(move || {
            let (mut controller, mut seen, mut piece) = (File::from(controller), Vec::new(), [0; 4096]);
            // An error means that the other side is closed.
            while let Ok(count @ 1..) = controller.read(&mut piece) {
                seen.extend_from_slice(&piece[..count]);
            }
            String::from_utf8_lossy(&seen).into_owned()
        });
        let stdout = Log::of(child.stdout.take().context("no stdout")?);
        let status = timeout(WAIT_TIMEOUT, child.wait()).await.context("it does not end")??;
        stdout.complete().await;
        Ok(Screen { code: status.code(), stdout: stdout.lines(), terminal: terminal.await? })
    }
}
