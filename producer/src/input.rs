//! The input of a command: a file, or standard input.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Opens `path`, or standard input for `-`. Returns the size of a file as well.
pub(crate) fn open(path: &Path) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((Box::new(file), Some(size)))
}

/// Refuses compressed input by its first bytes, because its lines would all be malformed. The error says how to
/// decompress it.
pub(crate) fn refuse_compressed(start: &[u8]) -> io::Result<()> {
    let formats: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "gzip -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
        (b"\xfd7zXZ\0", "xz", "xz -dc"),
        (b"BZh91AY&SY", "bzip2", "bzip2 -dc"),
        (b"PK\x03\x04", "zip, as spreadsheets are", "unzip -p"),
    ];
    match formats.iter().find(|(magic, ..)| start.starts_with(magic)) {
        Some((_, format, command)) => Err(io::Error::other(format!(
            "the input is compressed ({format}); decompress it with `{command} FILE` and send that to standard input"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_input_is_refused_with_the_command_to_decompress_it() {
        let refused = |start: &[u8]| refuse_compressed(start).unwrap_err().to_string();
        assert_eq!(
            refused(b"\x1f\x8b\x08\x00"),
            "the input is compressed (gzip); decompress it with `gzip -dc FILE` and send that to standard input"
        );
        assert!(refused(b"PK\x03\x04\x14").contains("spreadsheets"));
        for text in [&b""[..], b"time,value", b"{", b"PK", b"BZh"] {
            assert!(refuse_compressed(text).is_ok());
        }
    }
}
