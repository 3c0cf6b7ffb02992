//! Values that are read from files, and read again when a file changes.

use std::{
    fmt::Display,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::watch;

use crate::lock::lock;

/// When a file was last modified and its length in bytes; `None` if it cannot be read. Both, because an editor may
/// change only one of them.
type FileStamp = Option<(SystemTime, u64)>;

/// A value that is read from files.
pub struct Reloaded<T> {
    /// The content for the log, such as `tokens`.
    what: &'static str,
    files: Vec<PathBuf>,
    seen: Mutex<Vec<FileStamp>>,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    current: watch::Sender<T>,
    /// Grows with every new value.
    generation: AtomicU64,
}

impl<T> Reloaded<T> {
    /// Reads the value from `files`.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn new<E: Display>(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Before the files are read: a change during the read is then noticed later.
        let seen = Mutex::new(stamps(&files));
        let current = watch::Sender::new(read()?);
        let read = Box::new(move || read().map_err(|error| error.to_string()));
        Ok(Self { what, files, seen, read, current, generation: AtomicU64::new(0) })
    }

    /// The number of values before the present one. It grows after the value has changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The value of the last successful read.
    pub fn get(&self) -> watch::Ref<'_, T> {
        self.current.borrow()
    }

    /// Reads the files again if one of them has changed. If they are invalid or do not match, as while they are being
    /// replaced, the error is logged and the previous value stays.
    pub fn refresh(&self) {
        let mut seen = lock(&self.seen);
        let stamps = stamps(&self.files);
        if *seen == stamps {
            return;
        }
        *seen = stamps;
        match (self.read)() {
            Ok(value) => {
                self.current.send_replace(value);
                self.generation.fetch_add(1, Ordering::Release);
                ::tracing::info!(files = ?self.files, "{} reloaded", self.what);
            }
            Err(error) => ::tracing::error!(%error, "{} are invalid, keeping the previous ones", self.what),
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().map(stamp).collect()
}
