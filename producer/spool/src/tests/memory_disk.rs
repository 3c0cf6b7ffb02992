//! A disk in memory. It forgets at a crash what was not synced, and fails on demand.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use crate::storage::{File, Storage};

/// Effect of a crash on bytes that were written and not synced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Crash {
    /// Everything: only the process ended.
    Process,
    /// Nothing.
    Power,
    /// At most so many bytes of each file's end.
    TornPower(usize),
}

/// A failure of file operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The number of the first operation that fails.
    pub(super) call: usize,
    /// How many operations fail.
    pub(super) calls: usize,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FaultKind {
    /// `ENOSPC` or `EIO`.
    Error(i32),
    /// A write or read of less than was asked for. Other operations succeed.
    Short,
}

pub(super) const ENOSPC: i32 = 28;
pub(super) const EIO: i32 = 5;

#[derive(Clone, Default)]
struct Content {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Which cached bytes the next fsync writes. A failed fsync clears this too: the system holds the bytes for clean,
    /// and no later fsync writes them.
    dirty: Vec<bool>,
}

impl Content {
    fn resize(&mut self, len: usize) {
        self.cached.resize(len, 0);
        self.dirty.resize(len, true);
    }

    fn sync(&mut self) {
        self.durable.resize(self.cached.len(), 0);
        for (index, _) in self.dirty.iter().enumerate().filter(|(_, is_dirty)| **is_dirty) {
            self.durable[index] = self.cached[index];
        }
    }
}

type Shared = Arc<Mutex<Content>>;

#[derive(Default)]
struct State {
    files: BTreeMap<String, Shared>,
    durable_files: BTreeMap<String, Shared>,
    calls: usize,
    fault: Option<Fault>,
    free: Option<u64>,
    syncs: usize,
    /// Syncs of files wait until this is false.
    syncs_are_held: bool,
}

/// A disk. Clones are the same disk.
#[derive(Clone, Default)]
pub(super) struct MemoryDisk {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl MemoryDisk {
    pub(super) fn storage(&self) -> Box<dyn Storage> {
        Box::new(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Operations from now on are numbered from 0, and those of the fault fail.
    pub(super) fn fail(&self, fault: Option<Fault>) {
        let mut state = self.state();
        (state.calls, state.fault) = (0, fault);
    }

    /// The number of operations since [`MemoryDisk::fail`].
    pub(super) fn calls(&self) -> usize {
        self.state().calls
    }

    pub(super) fn set_free(&self, bytes: u64) {
        self.state().free = Some(bytes);
    }

    /// The number of syncs of files that have begun.
    pub(super) fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Syncs of files wait while `held`.
    pub(super) fn hold_syncs(&self, held: bool) {
        self.state().syncs_are_held = held;
        self.state.1.notify_all();
    }

    /// The disk after a crash.
    pub(super) fn crash(&self, crash: Crash) -> Self {
        let state = self.state();
        let files = if matches!(crash, Crash::Process) { &state.files } else { &state.durable_files };
        let left = |content: &Content| match crash {
            Crash::Process => content.cached.clone(),
            Crash::Power => content.durable.clone(),
            Crash::TornPower(most) => {
                let mut left = content.durable.clone();
                let rest = content.cached.get(left.len()..).unwrap_or_default();
                left.extend(&rest[..rest.len().min(most)]);
                left
            }
        };
        let copies = files.iter().map(|(name, content)| {
            let left = left(&content.lock().unwrap());
            (name.clone(), left)
        });
        Self::with(copies.collect())
    }

    /// A disk with these files.
    pub(super) fn with(files: BTreeMap<String, Vec<u8>>) -> Self {
        let disk = Self::default();
        for (name, bytes) in files {
            let dirty = vec![false; bytes.len()];
            let content = Content { cached: bytes.clone(), durable: bytes, dirty };
            disk.state().files.insert(name, Arc::new(Mutex::new(content)));
        }
        let files = disk.state().files.clone();
        disk.state().durable_files = files;
        disk
    }

    /// The present content of all files.
    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        state.files.iter().map(|(name, file)| (name.clone(), file.lock().unwrap().cached.clone())).collect()
    }

    /// Counts an operation. Returns whether it is to be short.
    fn operation(&self) -> io::Result<bool> {
        let mut state = self.state();
        let call = state.calls;
        state.calls += 1;
        match state.fault {
            Some(fault) if (fault.call..fault.call + fault.calls).contains(&call) => match fault.kind {
                FaultKind::Error(code) => Err(io::Error::from_raw_os_error(code)),
                FaultKind::Short => Ok(true),
            },
            _ => Ok(false),
        }
    }

    fn file(&self, content: &Shared) -> Box<dyn File> {
        Box::new(MemoryFile { disk: self.clone(), content: Arc::clone(content) })
    }
}

impl Storage for MemoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.operation()?;
        Ok(self.state().files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.operation()?;
        let content = Shared::default();
        let mut state = self.state();
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), Arc::clone(&content));
        drop(state);
        Ok(self.file(&content))
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        self.operation()?;
        let content = self.state().files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(content.lock().unwrap().cached.len() as u64)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.operation()?;
        let content = self.state().files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(&content))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.operation()?;
        let mut state = self.state();
        let content = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.operation()?;
        self.state().files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.operation()?;
        let mut state = self.state();
        state.durable_files = state.files.clone();
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        self.operation()?;
        Ok(self.state().free.unwrap_or(u64::MAX))
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    content: Shared,
}

impl File for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.operation()?;
        Ok(self.content.lock().unwrap().cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let is_short = self.disk.operation()?;
        let content = self.content.lock().unwrap();
        let rest = content.cached.get(offset as usize..).unwrap_or_default();
        let mut read = rest.len().min(buffer.len());
        if is_short && read > 1 {
            read /= 2;
        }
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let outcome = self.disk.operation();
        // A failing write may have written a part.
        let is_partial = matches!(outcome, Err(_) | Ok(true)) && bytes.len() > 1;
        let written = if is_partial { bytes.len() / 2 } else { bytes.len() };
        let mut content = self.content.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + written);
        if content.cached.len() < end {
            content.resize(end);
        }
        content.cached[start..end].copy_from_slice(&bytes[..written]);
        content.dirty[start..end].fill(true);
        outcome.map(|_| written)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk.operation()?;
        self.content.lock().unwrap().resize(len as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let outcome = self.disk.operation();
        let (state, released) = &*self.disk.state;
        let mut state = state.lock().unwrap();
        state.syncs += 1;
        released.notify_all();
        drop(released.wait_while(state, |state| state.syncs_are_held).unwrap());
        let mut content = self.content.lock().unwrap();
        if outcome.is_ok() {
            content.sync();
        }
        content.dirty.fill(false);
        outcome.map(drop)
    }
}
