//! Reads files of lines as other processes append to them.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use garenne_protocol::sensor::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Follows one NDJSON file. A line counts when its line end is there: a killed writer may leave half a line.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
    /// The beginning of a line without its end.
    rest: Vec<u8>,
}

/// A task that was acknowledged to its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expected {
    pub(crate) id: String,
    /// The reading in it, if it has one.
    #[serde(flatten)]
    pub(crate) reading: Option<ExpectedReading>,
}

/// The key of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExpectedReading {
    pub(crate) device: String,
    pub(crate) metric: String,
    pub(crate) time: Timestamp,
}

/// A line of an execution log. A worker of another project needs to write only the id.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Execution {
    pub(crate) task_id: String,
    /// The worker that executed it.
    #[serde(default = "unknown")]
    pub(crate) worker: Arc<str>,
    /// When it started, RFC 3339; empty if the worker does not report it.
    #[serde(default)]
    pub(crate) started_at: String,
}

fn unknown() -> Arc<str> {
    "?".into()
}

impl Tail {
    /// Follows `path`, which need not exist yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), read: 0, rest: Vec::new() }
    }

    /// The complete lines since the last call that are JSON objects of this type. Other lines are ignored.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> io::Result<Vec<T>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = std::mem::take(&mut self.rest);
        self.read += file.read_to_end(&mut bytes)? as u64;
        let complete = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.rest = bytes.split_off(complete);
        let lines = bytes.split(|&byte| byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
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
        let mut read = || tail.read::<u32>().unwrap();
        let nothing: [u32; 0] = [];
        assert_eq!(read(), nothing);
        let mut file = File::create(&path).unwrap();
        write!(file, "1\n2").unwrap();
        assert_eq!(read(), [1]);
        assert_eq!(read(), nothing);
        writeln!(file, "2").unwrap();
        assert_eq!(read(), [22]);
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
        let receipts: Vec<Expected> = Tail::new(&path).read().unwrap();
        assert_eq!(receipts.len(), 2);
        assert_eq!(receipts[0].reading.as_ref().unwrap().time.to_string(), "2026-05-04T05:00:03Z");
        assert_eq!(receipts[1], Expected { id: "b".into(), reading: None });

        let path = dir.path().join("results");
        std::fs::write(
            &path,
            "{\"task_id\":\"a\",\"kind\":\"k\",\"attempt\":1,\"worker\":\"w\",\"started_at\":\"t\",\"duration_ms\":0.1,\"output\":{}}\n",
        )
        .unwrap();
        let executions: Vec<Execution> = Tail::new(&path).read().unwrap();
        assert_eq!((executions[0].task_id.as_str(), &*executions[0].worker), ("a", "w"));
    }
}
