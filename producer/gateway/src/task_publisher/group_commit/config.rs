//! Bounds of group commit.

use std::time::Duration;

use garenne_common::config::{Invalid, Size};
use garenne_protocol::task::MOST_RECORDS;
use serde::{Deserialize, Serialize};

/// Bounds of group commit; the table `group_commit` of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupCommitConfig {
    /// Most records in one message; 1 disables group commit.
    pub records: usize,
    /// Most bytes of payload in one message; a larger task gets a message of its own.
    pub bytes: Size,
    /// Longest time that a record waits for others while a confirm is outstanding.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Most unconfirmed messages, half of them for large requests. Above it, records wait in groups.
    pub messages: usize,
}

impl Default for GroupCommitConfig {
    fn default() -> Self {
        Self { records: 500, bytes: Size::kib(128), wait: Duration::from_millis(5), messages: 16 }
    }
}

/// Range of `bytes`. A batch message with the ids and traces of its records must fit into a worker's `max_payload`.
const BYTES: (Size, Size) = (Size::kib(1), Size::mib(1));
/// Largest `wait`.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Largest `messages`.
const MAX_MESSAGES: usize = 1024;

impl GroupCommitConfig {
    /// # Errors
    /// The first bound that is out of range.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MOST_RECORDS).contains(&self.records) {
            let allowed = format!("expected 1 (off) to {MOST_RECORDS}");
            return Err(Invalid::new("group_commit.records", self.records, allowed));
        }
        let (least, most) = BYTES;
        if !(least..=most).contains(&self.bytes) {
            let allowed = format!("expected {least} to {most}");
            return Err(Invalid::new("group_commit.bytes", self.bytes, allowed));
        }
        if self.wait > MAX_WAIT {
            let wait = humantime::format_duration(self.wait);
            return Err(Invalid::new("group_commit.wait", wait, "expected 0s to 1s, such as 5ms"));
        }
        if !(2..=MAX_MESSAGES).contains(&self.messages) {
            let allowed = format!("expected 2 to {MAX_MESSAGES}");
            return Err(Invalid::new("group_commit.messages", self.messages, allowed));
        }
        Ok(())
    }
}
