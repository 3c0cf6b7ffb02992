//! Runs a program on a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt, fs::OpenOptionsExt},
    },
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{process::Child, task::spawn_blocking, time::timeout};

use super::{Ended, Log, Program, WAIT_TIMEOUT};

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

/// A program that draws on the whole terminal, such as `garenne top`. It is killed when the value is dropped.
#[derive(Debug)]
pub struct FullScreen {
    child: Child,
    keys: File,
    written: Arc<Mutex<Vec<u8>>>,
}

/// Rows and columns of a full screen: wide enough that no line of a problem is cut off.
const ROWS: u16 = 60;
const COLUMNS: u16 = 500;

/// A terminal of this size: its controlling side, and the side of the program.
fn open(rows: u16, columns: u16) -> Result<(OwnedFd, File)> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    tcsetwinsize(&controller, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let name = std::ffi::OsString::from_vec(ptsname(&controller, Vec::new())?.into_bytes());
    let no_controlling = i32::try_from(OpenptFlags::NOCTTY.bits())?;
    let theirs = File::options().read(true).write(true).custom_flags(no_controlling).open(name)?;
    Ok((controller, theirs))
}

impl Program {
    /// Runs it with a terminal of 100 columns as its standard error.
    pub async fn run_on_terminal(&self) -> Result<Screen> {
        let (controller, theirs) = open(24, 100)?;
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

    /// Starts it on a terminal that is large enough for every line.
    pub async fn start_on_full_screen(&self) -> Result<FullScreen> {
        let (controller, theirs) = open(ROWS, COLUMNS)?;
        let mut command = self.prepared().await?;
        command.env("TERM", "xterm").stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        let child = command.spawn()?;
        drop(command);
        let (keys, mut output) = (File::from(controller.try_clone()?), File::from(controller));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let shared = Arc::clone(&written);
        // The thread ends with the program.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..count]);
            }
        });
        Ok(FullScreen { child, keys, written })
    }
}

impl FullScreen {
    /// The lines that are on the screen now.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        lines_of(&String::from_utf8_lossy(&self.written.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Presses a key, and waits for the end of the program.
    pub async fn end_by(mut self, key: u8) -> Result<Ended> {
        self.keys.write_all(&[key])?;
        let status = timeout(WAIT_TIMEOUT, self.child.wait()).await.context("it does not end")??;
        let (stdout, stderr) = (self.lines(), Vec::new());
        Ok(Ended { code: status.code(), signal: None, stdout, stderr })
    }
}

/// The lines of a screen after this output: text, and the control sequences that move the cursor and clear the screen.
/// Colours are left out.
fn lines_of(output: &str) -> Vec<String> {
    let blank = || vec![vec![' '; COLUMNS.into()]; ROWS.into()];
    let (mut grid, mut row, mut column) = (blank(), 0, 0);
    let mut rest = output.chars();
    while let Some(next) = rest.next() {
        match next {
            '\u{1b}' if rest.as_str().starts_with('[') => {
                let sequence: String =
                    rest.by_ref().skip(1).take_while(|it| !('@'..='~').contains(it)).collect();
                let end = output[..output.len() - rest.as_str().len()].chars().next_back();
                let place =
                    |n: usize| sequence.split(';').nth(n).and_then(|it| it.parse().ok()).unwrap_or(1_usize);
                match end {
                    Some('H') => (row, column) = (place(0) - 1, place(1) - 1),
                    Some('J') => grid = blank(),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            _ if next.is_control() => {}
            _ => {
                if let Some(cell) = grid.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = next;
                }
                column += 1;
            }
        }
    }
    grid.into_iter().map(|row| row.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_is_what_was_written_last_to_each_cell() {
        let output = "\u{1b}[?1049h\u{1b}[2J\u{1b}[1;1Hno\u{1b}[1;4H\u{1b}[38;5;2mproblems\u{1b}[2;3H2 \u{2191}\u{1b}[2;3H3";
        assert_eq!(lines_of(output)[..3], ["no problems", "  3 \u{2191}", ""]);
        assert_eq!(lines_of(&format!("{output}\u{1b}[2J\u{1b}[1;1Hgone"))[..2], ["gone", ""]);
    }
}
