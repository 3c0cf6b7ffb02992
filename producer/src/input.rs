//! The input of a command: a file, or standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Opens `path`, or standard input for `-`. Returns the size of a file as well.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn open(path: &Path) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((Box::new(file), Some(size)))
}
