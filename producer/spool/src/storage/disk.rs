//! A directory of the file system.

use std::{
    fs,
    io::{self, Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock, statvfs},
    io::Errno,
};

use super::{File, Storage};
use crate::{error::OpenError, segment::sorted};

/// The file that the writer of the directory has locked. It holds the process id.
const LOCK: &str = "lock";

/// A directory, and its locks if it was opened to write.
pub(crate) struct Directory {
    path: PathBuf,
    /// The directory itself, which cannot be removed while it has files, and the lock file, which older versions lock.
    /// Released when they are closed, also by the end of the process.
    locks: Option<(fs::File, fs::File)>,
}

impl Directory {
    /// Creates the directory if it does not exist, and locks it.
    pub(crate) fn lock(path: &Path) -> Result<Self, OpenError> {
        let failed = |operation| move |error| OpenError::Io { directory: path.to_owned(), operation, error };
        fs::create_dir_all(path).map_err(failed("create the directory"))?;
        let own = fs::File::open(path).map_err(failed("open the directory"))?;
        let lock = path.join(LOCK);
        let lock = fs::File::options().read(true).write(true).create(true).truncate(false).open(lock);
        let mut lock = lock.map_err(failed("open the lock file"))?;
        let lock_of = |file: &fs::File| flock(file, FlockOperation::NonBlockingLockExclusive);
        // If the lock file was deleted, another process would lock a new one, but never another directory. NFS cannot
        // lock directories.
        let outcome = match lock_of(&own) {
            Err(Errno::BADF | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOLCK) | Ok(()) => lock_of(&lock),
            in_use_or_failed => in_use_or_failed,
        };
        match outcome {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let read = lock.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                let holder = if read { holder.trim().to_owned() } else { "unknown".to_owned() };
                return Err(OpenError::InUse { directory: path.to_owned(), holder });
            }
            Err(error) => return Err(failed("lock the directory")(error.into())),
        }
        // The process id only explains a refusal: a full disk must not prevent draining.
        let written = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(format!("{}\n", std::process::id()).as_bytes()));
        if let Err(error) = written {
            tracing::warn!(directory = %path.display(), %error, "cannot write the process id to the spool's lock file");
        }
        let directory = Self { path: path.to_owned(), locks: Some((own, lock)) };
        let names = directory.list().map_err(failed("list the directory"))?;
        let is_foreign = |name: &&String| !fs::metadata(path.join(name)).is_ok_and(|it| it.is_file());
        match sorted(&names).into_iter().map(|(_, name)| name).find(is_foreign) {
            Some(name) => Err(OpenError::NoFile { segment: path.join(name) }),
            None => Ok(directory),
        }
    }

    /// Reads the directory without its lock.
    pub(crate) fn read_only(path: &Path) -> Self {
        Self { path: path.to_owned(), locks: None }
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let file = fs::File::options().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path.join(name))?.len())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let (path, writes) = (self.path.join(name), self.locks.is_some());
        // To open a pipe would wait for its other end.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("is no file"));
        }
        Ok(Box::new(fs::File::options().read(true).write(writes).open(path)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    fn free(&self) -> io::Result<u64> {
        let system = statvfs(&self.path)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }
}

impl File for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn is_deleted(&self) -> bool {
        self.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}
