//! The file operations of a spool. Tests replace them to make each of them fail.

pub(crate) mod disk;

use std::io;

/// A directory.
pub(crate) trait Storage: Send {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file that must not exist.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Size of a file, in bytes.
    fn size(&self, name: &str) -> io::Result<u64>;
    /// Opens a file to read and write.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Renames a file; replaces the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// Free space of the file system, in bytes.
    fn free(&self) -> io::Result<u64>;
}

/// A file. Like the system calls, reads and writes may be short.
pub(crate) trait File: Send {
    fn len(&self) -> io::Result<u64>;
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes the content and the size durable.
    fn sync(&self) -> io::Result<()>;
    /// Whether it was deleted while it is open, so that what it has ends with the process.
    fn is_deleted(&self) -> bool {
        false
    }
}

pub(crate) fn write_all(file: &dyn File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Appends the bytes from `from` to `to` of the file to `bytes`; fewer if the file is shorter.
pub(crate) fn read_range(file: &dyn File, from: u64, to: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let start = bytes.len();
    bytes.resize(start + usize::try_from(to.saturating_sub(from)).map_err(io::Error::other)?, 0);
    let mut filled = start;
    let outcome = loop {
        if filled == bytes.len() {
            break Ok(());
        }
        match file.read_at(&mut bytes[filled..], from + (filled - start) as u64) {
            Ok(0) => break Ok(()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    bytes.truncate(if outcome.is_ok() { filled } else { start });
    outcome
}
