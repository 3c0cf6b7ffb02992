//! Detects that a file has changed.

use std::{path::Path, time::SystemTime};

/// When a file was last modified and its length in bytes; `None` if it cannot be read. Both, because an editor may
/// change only one of them.
pub(crate) type FileStamp = Option<(SystemTime, u64)>;

pub(crate) fn file_stamp(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
