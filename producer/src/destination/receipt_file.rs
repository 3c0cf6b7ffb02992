//! A file with one line per confirmed reading, for audits.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use garenne_protocol::{
    sensor::{Reading, Timestamp},
    task::TaskId,
};
use serde::Serialize;

/// A file with one JSON line per confirmed reading.
pub struct ReceiptFile(Mutex<File>);

#[derive(Serialize)]
struct Receipt<'a> {
    id: &'a str,
    device: &'a str,
    metric: &'a str,
    time: Timestamp,
}

impl ReceiptFile {
    /// Opens `path` for appending, or creates it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(|file| Self(Mutex::new(file)))
    }

    /// Appends one line per reading in a single write, so that a reader does not see partial lines.
    ///
    /// # Errors
    /// It cannot be written any more.
    pub fn append(&self, readings: &[Reading], ids: &[TaskId]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(readings.len() * 128);
        for (reading, id) in readings.iter().zip(ids) {
            let Reading { device, metric, time, .. } = reading;
            let receipt = Receipt { id: id.as_str(), device, metric, time: *time };
            serde_json::to_writer(&mut lines, &receipt)?;
            lines.push(b'\n');
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&lines)
    }
}
