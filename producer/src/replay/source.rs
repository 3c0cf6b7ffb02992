//! The bytes of a recording: a file, which is read several times, or a pipe, which is read once.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek},
    path::Path,
};

use super::encoding::refuse_utf_16;
use crate::input;

/// Bytes of a pipe from which the layout is detected.
pub(super) const SAMPLE_SIZE: usize = 512 * 1024;

/// Where the bytes of a recording come from.
pub(super) enum Source {
    /// A file.
    File(File),
    /// A pipe, and what was read of it.
    Pipe { start: Vec<u8>, rest: Box<dyn Read + Send> },
}

impl Source {
    /// Opens `path`, or standard input for `-`. Returns the size of a file as well. Refuses compressed input and
    /// UTF-16.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Option<u64>)> {
        if path.as_os_str() == "-" {
            return Ok((Self::pipe(Box::new(io::stdin()))?, None));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok((Self::pipe(Box::new(file))?, None));
        }
        let mut start = Vec::new();
        (&file).take(4096).read_to_end(&mut start)?;
        check(&start)?;
        Ok((Self::File(file), Some(metadata.len())))
    }

    /// A recording that can be read once.
    pub(super) fn pipe(mut reader: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut start = Vec::new();
        reader.by_ref().take(SAMPLE_SIZE as u64).read_to_end(&mut start)?;
        check(&start)?;
        Ok(Self::Pipe { start, rest: reader })
    }

    /// Whether it can be read several times.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// What can be known before the readings are read: the whole file, or the complete lines at the start of a pipe.
    pub(super) fn known(&self) -> io::Result<Box<dyn BufRead + '_>> {
        match self {
            Self::File(file) => Ok(Box::new(from_start(file)?)),
            Self::Pipe { start, .. } => {
                let complete = match start.iter().rposition(|&byte| byte == b'\n') {
                    Some(end) if start.len() == SAMPLE_SIZE => &start[..=end],
                    _ => start,
                };
                Ok(Box::new(complete))
            }
        }
    }

    /// All bytes. A pipe has them once.
    pub(super) fn all(&mut self) -> io::Result<Box<dyn BufRead + Send>> {
        match self {
            Self::File(file) => Ok(Box::new(from_start(file)?)),
            Self::Pipe { start, rest } => {
                let rest = BufReader::new(std::mem::replace(rest, Box::new(io::empty())));
                Ok(Box::new(Cursor::new(std::mem::take(start)).chain(rest)))
            }
        }
    }
}

/// The readers of a file share its position: one is used up before the next one is opened.
fn from_start(file: &File) -> io::Result<BufReader<File>> {
    let mut file = file.try_clone()?;
    file.rewind()?;
    Ok(BufReader::with_capacity(128 * 1024, file))
}

fn check(start: &[u8]) -> io::Result<()> {
    input::refuse_compressed(start)?;
    refuse_utf_16(start)
}
