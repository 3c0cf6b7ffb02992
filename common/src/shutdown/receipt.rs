//! The shutdown receipt: how many deliveries a process had, by settlement. It is the last line on stderr.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Mode;
use crate::exit::Exit;
use crate::text::printable_json;

/// A worker's report after it has stopped. Counts are messages since its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "shutdown_receipt")]
pub struct Receipt {
    /// The worker's name, as on its heartbeats.
    pub worker: String,
    /// The mode the shutdown ended in; `escalated` tells whether it began in a milder one.
    pub mode: Mode,
    /// Whether an operator or the shutdown timeout made the mode stricter.
    pub escalated: bool,
    /// Messages delivered by the broker.
    pub delivered: u64,
    /// Succeeded and acknowledged.
    pub acked: u64,
    /// Requeued; this is not an attempt.
    pub requeued: u64,
    /// Copied to a retry queue: failed attempts, snoozed tasks, tasks with a delay that is not over (a long one passes through
    /// several retry queues and workers), and tasks of kinds that this worker has no handler for.
    pub retried: u64,
    /// Copied to the dead-letter queue.
    pub dead: u64,
    /// Copied to the quarantine.
    pub quarantined: u64,
    /// Settled here, but the connection was lost, or the broker stopped answering during the shutdown, before the
    /// broker is known to have received the settlement. What it did not receive, it redelivers.
    pub lost_settlements: u64,
    /// Still running when the process ended; the broker redelivers.
    pub abandoned: u64,
    /// Duration of the shutdown, in seconds.
    pub seconds: f64,
}

impl Receipt {
    /// Whether every delivery was settled exactly once.
    pub fn balances(&self) -> bool {
        let settled = self.acked
            + self.requeued
            + self.retried
            + self.dead
            + self.quarantined
            + self.lost_settlements
            + self.abandoned;
        self.delivered == settled
    }

    /// The exit code: abandoned tasks are a failure.
    pub fn exit(&self) -> Exit {
        if self.abandoned > 0 { Exit::Failed } else { Exit::Done }
    }

    /// The receipt as one line of JSON, without a line break.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a receipt holds only strings and finite numbers")
    }

    /// Writes the receipt to `path` and then as one line to stderr.
    ///
    /// The line is printed even if the file cannot be written.
    ///
    /// # Errors
    /// The file cannot be written; the old content of `path` is then unchanged.
    pub fn write_to(&self, path: &Path) -> Result<(), ReceiptError> {
        let written = self.save(path);
        self.print();
        written
    }

    /// Prints the receipt as one line to stderr. A closed stderr is ignored.
    pub fn print(&self) {
        let line = format!("{}\n", printable_json(&self.to_line()));
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    /// Replaces `path` atomically, so that a reader never sees a partial receipt.
    fn save(&self, path: &Path) -> Result<(), ReceiptError> {
        let failed = |source| ReceiptError { path: path.to_owned(), source };
        let mut name = path.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?.to_owned();
        // Several workers may share the folder: the process id makes the temporary name unique.
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let write = || -> io::Result<()> {
            let mut file = File::create(&part)?;
            writeln!(file, "{}", self.to_line())?;
            file.sync_all()?;
            std::fs::rename(&part, path)
        };
        write().map_err(|source| {
            let _ = std::fs::remove_file(&part);
            failed(source)
        })
    }
}

/// The receipt file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("receipt file {} cannot be written: {source}", path.display())]
#[non_exhaustive]
pub struct ReceiptError {
    /// The configured path.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        Receipt {
            worker: "w1".into(),
            mode: Mode::Soft,
            escalated: false,
            delivered: 21,
            acked: 6,
            requeued: 5,
            retried: 4,
            dead: 3,
            quarantined: 2,
            lost_settlements: 1,
            abandoned: 0,
            seconds: 0.25,
        }
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        assert_eq!(
            receipt().to_line(),
            concat!(
                r#"{"event":"shutdown_receipt","worker":"w1","mode":"soft","escalated":false,"delivered":21,"#,
                r#""acked":6,"requeued":5,"retried":4,"dead":3,"quarantined":2,"lost_settlements":1,"#,
                r#""abandoned":0,"seconds":0.25}"#
            )
        );
        assert_eq!(serde_json::from_str::<Receipt>(&receipt().to_line()).unwrap(), receipt());
    }

    #[test]
    fn it_balances_only_if_every_delivery_is_settled() {
        assert!(receipt().balances());
        assert!(!Receipt { acked: 5, ..receipt() }.balances());
        assert!(Receipt { acked: 5, abandoned: 1, ..receipt() }.balances());
        assert!(!Receipt { delivered: 20, ..receipt() }.balances());
    }

    #[test]
    fn abandoned_tasks_fail_the_process() {
        assert_eq!(receipt().exit(), Exit::Done);
        assert_eq!(Receipt { abandoned: 1, ..receipt() }.exit(), Exit::Failed);
    }

    #[test]
    fn the_file_is_replaced_and_no_temporary_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipt.json");
        std::fs::write(&path, "an older and much longer receipt".repeat(100)).unwrap();
        receipt().write_to(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), receipt().to_line() + "\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_error_names_the_file_that_cannot_be_written() {
        let error = receipt().write_to(Path::new("/nonexistent-folder/receipt.json")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "receipt file /nonexistent-folder/receipt.json cannot be written: \
             No such file or directory (os error 2)"
        );
    }
}
