//! The spool for asynchronous callers: a thread owns the log, and callers send it requests.

use std::{io, path::Path, sync::Arc, time::SystemTime};

use garenne_common::supervise::{self, ThreadHandle};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    config::SpoolConfig,
    error::{OpenError, SpoolError},
    log::Log,
    record::{Batch, Position, Record},
    status::SpoolStatus,
    storage::disk::Directory,
};

/// Requests that may wait for the thread. Further callers wait in turn.
const QUEUE: usize = 1024;
/// Bytes of records after which no further request joins a write.
const GROUP_BYTES: usize = 4 << 20;

/// An open spool. Clones share it; it is closed, and its directory unlocked, after the last one is dropped.
///
/// [`Spool::append`] stores records, [`Spool::read`] and [`Spool::ack`] drain them in order. Every accepted record is
/// read until it is acknowledged, at least once and with the same id.
#[derive(Clone, Debug)]
pub struct Spool {
    requests: mpsc::Sender<Request>,
    status: watch::Receiver<SpoolStatus>,
    thread: Arc<ThreadHandle<()>>,
}

type Answer<T> = oneshot::Sender<Result<T, SpoolError>>;

#[derive(Debug)]
enum Request {
    Append { records: Vec<Record>, answer: Answer<()> },
    Read { from: Position, max_records: usize, max_bytes: usize, answer: Answer<Batch> },
    Ack { position: Position, answer: Answer<()> },
    SetAside { records: Vec<Record>, answer: Answer<()> },
    RecountSetAside { answer: Answer<()> },
}

impl Spool {
    /// Opens the spool of a directory, and creates the directory if it does not exist. Fails if another process has
    /// it open, or a segment has an unknown format version.
    pub async fn open(directory: &Path, config: SpoolConfig) -> Result<Self, OpenError> {
        let path = directory.to_owned();
        Self::start(directory, move || Log::open(Box::new(Directory::lock(&path)?), &path, config)).await
    }

    /// As [`Spool::open`], on other storage.
    #[cfg(test)]
    pub(crate) async fn open_on(
        storage: Box<dyn crate::storage::Storage>,
        config: SpoolConfig,
    ) -> Result<Self, OpenError> {
        let path = Path::new("memory");
        Self::start(path, move || Log::open(storage, path, config)).await
    }

    async fn start(
        directory: &Path,
        open: impl FnOnce() -> Result<Log, OpenError> + Send + 'static,
    ) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Io {
            directory: directory.to_owned(),
            operation: "start the thread of the spool",
            error,
        };
        let (requests, receiver) = mpsc::channel(QUEUE);
        let (opened, answer) = oneshot::channel();
        let thread = supervise::spawn_thread("spool", move || {
            let log = match open() {
                Ok(log) => log,
                Err(error) => {
                    // Fails if the caller has gone.
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            let (status, watched) = watch::channel(log.status());
            if opened.send(Ok(watched)).is_ok() {
                serve(log, receiver, &status);
            }
        });
        let thread = Arc::new(thread.map_err(failed)?);
        let status = answer.await.map_err(|_| failed(io::Error::other("it panicked")))??;
        Ok(Self { requests, status, thread })
    }

    /// Stores the records of a request, all or none. Returns after the fsync of their bytes.
    ///
    /// If the future is dropped before it returns, the records may be stored. After [`SpoolError::Io`] the records do
    /// not count, but may be drained if the process ends before another append succeeds.
    pub async fn append(&self, records: Vec<Record>) -> Result<(), SpoolError> {
        self.request(|answer| Request::Append { records, answer }).await
    }

    /// Reads the records from `from` on that are not acknowledged: at most `max_records`, and at most `max_bytes` unless
    /// the first record is larger. Unreadable records are skipped. The next batch begins at [`Batch::end`]; it equals
    /// `from` if there are no more records. If a segment cannot be read, reading from the same position tries again,
    /// and passes over the segment after the third failure.
    pub async fn read(
        &self,
        from: Position,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Batch, SpoolError> {
        self.request(|answer| Request::Read { from, max_records, max_bytes, answer }).await
    }

    /// Acknowledges all records before `position`. They are not read again, and segments without others are removed.
    /// If it fails, the position is not durable: after a restart the records may come again. Until then they do not.
    pub async fn ack(&self, position: Position) -> Result<(), SpoolError> {
        self.request(|answer| Request::Ack { position, answer }).await
    }

    /// Keeps records that cannot be published in a segment that is set aside, to be exported. They are still to be
    /// acknowledged. If it fails, the records may not be stored.
    pub async fn set_aside(&self, records: Vec<Record>) -> Result<(), SpoolError> {
        self.request(|answer| Request::SetAside { records, answer }).await
    }

    /// Counts the segments that are set aside, because an operator may have removed some. An append that the bound of
    /// bytes would refuse does so too.
    pub async fn recount_set_aside(&self) -> Result<(), SpoolError> {
        self.request(|answer| Request::RecountSetAside { answer }).await
    }

    /// The state after the last requests, and notice of its changes.
    pub fn status(&self) -> watch::Receiver<SpoolStatus> {
        self.status.clone()
    }

    /// Closes this handle. If it is the last one, waits until the directory is unlocked.
    pub async fn close(self) {
        let Self { requests, thread, .. } = self;
        drop(requests);
        if let Some(thread) = Arc::into_inner(thread) {
            // A panic was logged where it happened.
            let _ = thread.await;
        }
    }

    async fn request<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, SpoolError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| SpoolError::Closed)?;
        answered.await.map_err(|_| SpoolError::Closed)?
    }
}

/// Serves requests until no handle is left. What waits together is appended with one fsync, then acknowledged, then
/// read.
fn serve(mut log: Log, mut requests: mpsc::Receiver<Request>, status: &watch::Sender<SpoolStatus>) {
    let mut received = Vec::new();
    while requests.blocking_recv_many(&mut received, QUEUE) > 0 {
        let (mut appends, mut acks, mut reads) = (Appends::default(), Vec::new(), Vec::new());
        for request in received.drain(..) {
            match request {
                Request::Append { records, answer } => {
                    appends.add(records, answer);
                    if appends.bytes >= GROUP_BYTES {
                        appends.commit(&mut log, status);
                    }
                }
                Request::Ack { position, answer } => acks.push((position, answer)),
                Request::SetAside { records, answer } => {
                    // Fails if the caller has gone, here and below.
                    let outcome = log.set_aside(&records);
                    status.send_replace(log.status());
                    let _ = answer.send(outcome);
                }
                Request::RecountSetAside { answer } => {
                    let outcome = log.recount_set_aside();
                    status.send_replace(log.status());
                    let _ = answer.send(outcome);
                }
                Request::Read { from, max_records, max_bytes, answer } => {
                    reads.push((from, max_records, max_bytes, answer));
                }
            }
        }
        appends.commit(&mut log, status);
        if let Some(position) = acks.iter().map(|(position, _)| *position).max() {
            let outcome = log.ack(position);
            status.send_replace(log.status());
            for (_, answer) in acks {
                let _ = answer.send(outcome.clone());
            }
        }
        for (from, max_records, max_bytes, answer) in reads {
            let _ = answer.send(log.read(from, max_records, max_bytes));
        }
        status.send_replace(log.status());
    }
}

/// Requests that are appended together.
#[derive(Default)]
struct Appends {
    requests: Vec<Vec<Record>>,
    answers: Vec<Answer<()>>,
    bytes: usize,
}

impl Appends {
    fn add(&mut self, records: Vec<Record>, answer: Answer<()>) {
        self.bytes += records.iter().map(|record| record.id.len() + record.body.len()).sum::<usize>();
        self.requests.push(records);
        self.answers.push(answer);
    }

    fn commit(&mut self, log: &mut Log, status: &watch::Sender<SpoolStatus>) {
        if self.answers.is_empty() {
            return;
        }
        let outcomes = log.append(&self.requests, SystemTime::now());
        status.send_replace(log.status());
        for (answer, outcome) in self.answers.drain(..).zip(outcomes) {
            let _ = answer.send(outcome);
        }
        self.requests.clear();
        self.bytes = 0;
    }
}
