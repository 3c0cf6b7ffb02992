//! A line for every reading that is safe, so that an audit can look for each.

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

/// The file the lines are appended to.
pub struct Receipts(Mutex<File>);

#[derive(Serialize)]
struct Receipt<'a> {
    id: &'a str,
    device: &'a str,
    metric: &'a str,
    time: Timestamp,
}

impl Receipts {
    /// Appends to `path`, which need not exist.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(|file| Self(Mutex::new(file)))
    }

    /// Appends a line per reading, all of them in one write, so that a reader never sees half a line.
    ///
    /// # Errors
    /// It cannot be written any more.
    pub fn append(&self, batch: &[Reading], ids: &[TaskId]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(batch.len() * 128);
        for (reading, id) in batch.iter().zip(ids) {
            let Reading { device, metric, time, .. } = reading;
            let receipt = Receipt { id: id.as_str(), device, metric, time: *time };
            serde_json::to_writer(&mut lines, &receipt)?;
            lines.push(b'\n');
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&lines)
    }
}
