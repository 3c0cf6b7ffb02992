//! What a handler's process prints.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
    time::Duration,
};

use garenne_common::{lock::lock, supervise};
use prometheus::IntCounter;
use rustix::io::ioctl_fionread;
use tokio::{net::unix::pipe, time::timeout};
use tokio_util::task::TaskTracker;

/// How long the rest of the output is read after a process has ended. Its guardian has closed the pipes then.
const LAST_OUTPUT: Duration = Duration::from_millis(100);

/// The longest line of a log, in bytes. The rest of a longer one is discarded and counted.
const LONGEST_LINE: usize = 8 * 1024;
/// How much of the last line is kept for errors, in bytes.
const KEPT: usize = 500;

/// Reads the output of one process into the worker's log, always to its end, so that the process is never blocked.
#[derive(Clone)]
pub(crate) struct Logs {
    /// The name of the handler.
    handler: Arc<str>,
    cut: IntCounter,
    errors: Arc<Mutex<Errors>>,
    following: TaskTracker,
}

/// What errors need of the standard error output.
#[derive(Default)]
struct Errors {
    /// The last line that is not forgotten.
    last: String,
    /// How many bytes were read.
    read: u64,
    /// How many bytes are forgotten. Some may still be in the pipe.
    forgotten: u64,
    /// The pipe, while it is read.
    pipe: Option<OwnedFd>,
}

impl Logs {
    pub(crate) fn new(handler: &Arc<str>, cut: &IntCounter) -> Self {
        Self {
            handler: Arc::clone(handler),
            cut: cut.clone(),
            errors: Arc::default(),
            following: TaskTracker::new(),
        }
    }

    /// The last line of the standard error output of a process that has ended, or nothing.
    pub(crate) async fn last_line(&self) -> String {
        self.following.close();
        let _ = timeout(LAST_OUTPUT, self.following.wait()).await;
        lock(&self.errors).last.clone()
    }

    /// Forgets what was printed until now.
    pub(crate) fn forget(&self) {
        let mut errors = lock(&self.errors);
        let waiting = errors.pipe.as_ref().and_then(|pipe| ioctl_fionread(pipe).ok()).unwrap_or_default();
        errors.forgotten = errors.read + waiting;
        errors.last.clear();
    }

    /// How a process ended, with its last line.
    pub(crate) async fn after(&self, end: &str) -> String {
        match self.last_line().await {
            line if line.is_empty() => end.to_owned(),
            line => format!("{end}: {line}"),
        }
    }

    /// Logs each line of `output`.
    pub(crate) fn follow(&self, output: pipe::Receiver, stream: &'static str) {
        let (logs, is_stderr) = (self.clone(), stream == "stderr");
        if is_stderr {
            lock(&self.errors).pipe = output.as_fd().try_clone_to_owned().ok();
        }
        let following = async move {
            let mut lines = Lines::default();
            let mut buffer = vec![0; 16 * 1024];
            while output.readable().await.is_ok() {
                let read = match is_stderr {
                    true => logs.read_errors(&output, &mut buffer),
                    false => output.try_read(&mut buffer).map(|read| (0, read)),
                };
                match read {
                    Ok((forgotten, read @ 1..)) => {
                        let (old, new) = buffer[..read].split_at(forgotten);
                        lines.take(old, |line, is_cut| logs.log(stream, line, is_cut, false));
                        lines.take(new, |line, is_cut| logs.log(stream, line, is_cut, is_stderr));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(_) | Err(_) => break,
                }
            }
            lines.end(|line, is_cut| logs.log(stream, line, is_cut, is_stderr));
            if is_stderr {
                lock(&logs.errors).pipe = None;
            }
        };
        supervise::isolated("handler-logs", following).spawn_in(&self.following).detach();
    }

    /// Reads of the standard error output. Returns how many bytes are forgotten, and how many were read.
    fn read_errors(&self, output: &pipe::Receiver, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        // While nothing can be forgotten: what is read must not count as waiting in the pipe, too.
        let mut errors = lock(&self.errors);
        let read = output.try_read(buffer)?;
        let forgotten = usize::try_from(errors.forgotten.saturating_sub(errors.read)).unwrap_or(usize::MAX);
        errors.read += read as u64;
        Ok((forgotten.min(read), read))
    }

    /// Logs a line, and keeps it for errors.
    fn log(&self, stream: &'static str, line: &[u8], is_cut: bool, is_kept: bool) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        if is_cut {
            self.cut.inc();
        }
        if is_kept {
            let kept =
                text.char_indices().map(|(at, _)| at).take_while(|at| *at <= KEPT).last().unwrap_or_default();
            let kept = if text.len() <= KEPT { text } else { &text[..kept] };
            kept.clone_into(&mut lock(&self.errors).last);
        }
        tracing::info!(handler = %self.handler, stream, cut = is_cut, "{text}");
    }
}

/// Divides output into lines.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// Whether the rest of a line that is too long is being discarded.
    is_cut: bool,
}

impl Lines {
    fn take(&mut self, output: &[u8], mut log: impl FnMut(&[u8], bool)) {
        for part in output.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST_LINE - self.line.len();
            let content = part.strip_suffix(b"\n").unwrap_or(part);
            self.line.extend_from_slice(&content[..content.len().min(room)]);
            self.is_cut |= content.len() > room;
            if part.ends_with(b"\n") {
                self.end(&mut log);
            }
        }
    }

    /// Ends the line.
    fn end(&mut self, mut log: impl FnMut(&[u8], bool)) {
        log(&self.line, self.is_cut);
        self.line.clear();
        self.is_cut = false;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(output: &[&[u8]]) -> Vec<(usize, bool)> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        output.iter().for_each(|part| lines.take(part, |line, is_cut| found.push((line.len(), is_cut))));
        lines.end(|line, is_cut| found.push((line.len(), is_cut)));
        found
    }

    #[tokio::test]
    async fn what_was_printed_before_is_forgotten_while_it_is_in_the_pipe() {
        let logs = Logs::new(&"h".into(), &IntCounter::new("cut", "cut").unwrap());
        let (ours, mut theirs) = io::pipe().unwrap();
        logs.follow(pipe::Receiver::from_owned_fd(ours.into()).unwrap(), "stderr");
        // No other task runs on this thread meanwhile.
        theirs.write_all(b"of an earlier task\n").unwrap();
        logs.forget();
        drop(theirs);
        assert_eq!(logs.last_line().await, "");

        let logs = Logs::new(&"h".into(), &IntCounter::new("cut", "cut").unwrap());
        let (ours, mut theirs) = io::pipe().unwrap();
        logs.follow(pipe::Receiver::from_owned_fd(ours.into()).unwrap(), "stderr");
        theirs.write_all(b"of an earlier task\n").unwrap();
        logs.forget();
        theirs.write_all(b"of this one\n").unwrap();
        drop(theirs);
        assert_eq!(logs.last_line().await, "of this one");
    }

    #[test]
    fn output_is_divided_into_lines_across_reads() {
        assert_eq!(lines(&[b"ab", b"c\nd", b"\n", b"e"]), [(3, false), (1, false), (1, false)]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_the_next_one_is_whole() {
        let long = vec![b'x'; 100_000];
        assert_eq!(lines(&[&long, &long, b"\nnext\n"]), [(LONGEST_LINE, true), (4, false), (0, false)]);
    }
}
