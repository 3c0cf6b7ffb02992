//! Reads files of lines as other processes append to them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use garenne_protocol::sensor::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::evidence::Execution;

/// Follows one NDJSON file. A line counts when its line end is there: a killed writer may leave half a line.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    read: u64,
    /// The beginning of a line without its end.
    rest: Vec<u8>,
}

/// A task that was acknowledged to its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The task's id.
    pub id: String,
    /// The reading in it, if it has one.
    #[serde(flatten)]
    pub reading: Option<ExpectedReading>,
}

/// The key of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in a reading")]
pub struct ExpectedReading {
    pub device: String,
    pub metric: String,
    pub time: Timestamp,
}

/// A worker of another project needs to write only the id.
#[derive(Deserialize)]
struct ResultLine {
    task_id: String,
    #[serde(default = "unknown")]
    worker: Arc<str>,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    started_at: String,
}

fn unknown() -> Arc<str> {
    "?".into()
}

impl Tail {
    /// Follows `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), read: 0, rest: Vec::new() }
    }

    /// The complete lines since the last call.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn lines(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = std::mem::take(&mut self.rest);
        self.read += file.read_to_end(&mut bytes)? as u64;
        let complete = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.rest = bytes.split_off(complete);
        Ok(bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// The complete lines since the last call that are JSON objects of this type.
    pub(super) fn parsed<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        Ok(self.lines()?.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    /// The new receipts of a sender. Other lines are ignored.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn receipts(&mut self) -> io::Result<Vec<Expected>> {
        self.parsed()
    }

    /// The new executions in a worker's log, with their task ids. Other lines are ignored.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn executions(&mut self) -> io::Result<Vec<(String, Execution)>> {
        let execution = |line: ResultLine| {
            let ResultLine { task_id, worker, attempt, started_at } = line;
            (task_id, Execution { worker, attempt, started_at })
        };
        Ok(self.parsed()?.into_iter().map(execution).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_counts_when_its_end_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::new(&path);
        assert_eq!(tail.lines().unwrap().len(), 0);
        let mut file = File::create(&path).unwrap();
        write!(file, "one\ntw").unwrap();
        assert_eq!(tail.lines().unwrap(), [b"one".to_vec()]);
        assert_eq!(tail.lines().unwrap().len(), 0);
        writeln!(file, "o").unwrap();
        assert_eq!(tail.lines().unwrap(), [b"two".to_vec()]);
    }

    #[test]
    fn receipts_and_executions_are_read_and_other_lines_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("receipts");
        std::fs::write(
            &path,
            "{\"id\":\"a\",\"device\":\"d\",\"metric\":\"m\",\"time\":\"2026-05-04T05:00:03Z\"}\n{\"id\":\"b\"}\n{\"i\n",
        )
        .unwrap();
        let receipts = Tail::new(&path).receipts().unwrap();
        assert_eq!(receipts.len(), 2);
        assert_eq!(receipts[0].reading.as_ref().unwrap().time.to_string(), "2026-05-04T05:00:03Z");
        assert_eq!(receipts[1], Expected { id: "b".into(), reading: None });

        let path = dir.path().join("results");
        std::fs::write(
            &path,
            "{\"task_id\":\"a\",\"kind\":\"k\",\"attempt\":1,\"worker\":\"w\",\"started_at\":\"t\",\"duration_ms\":0.1,\"output\":{}}\n",
        )
        .unwrap();
        let executions = Tail::new(&path).executions().unwrap();
        assert_eq!((executions[0].0.as_str(), &*executions[0].1.worker), ("a", "w"));
    }
}
