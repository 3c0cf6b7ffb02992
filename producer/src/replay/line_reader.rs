//! Reads the lines of a recording of any size and of common encodings.

use std::{
    borrow::Cow,
    io::{self, BufRead, BufReader, Cursor, Read},
};

use crate::input;

/// Bytes at the start of a file from which the layout is detected.
const SAMPLE_SIZE: usize = 512 * 1024;
/// Longest line in bytes. The rest of a longer line is skipped.
const MAX_LINE: usize = 1024 * 1024;

/// Reads the lines of a recording.
pub(super) struct LineReader {
    reader: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// A line.
pub(super) struct Line<'a> {
    /// Starts at 1.
    pub(super) number: u64,
    /// The text. A line that is not UTF-8 is decoded as Latin-1, which loggers use.
    pub(super) text: Cow<'a, str>,
    /// Whether it was longer than [`MAX_LINE`] and is cut.
    pub(super) cut: bool,
}

/// Reads the complete lines at the start of a recording, from which its layout is detected. The returned reader begins
/// with them.
pub(super) fn sampled(mut reader: Box<dyn Read + Send>) -> io::Result<(Vec<String>, LineReader)> {
    let mut start = Vec::new();
    reader.by_ref().take(SAMPLE_SIZE as u64).read_to_end(&mut start)?;
    input::refuse_compressed(&start)?;
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Err(io::Error::other("the file is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"));
    }
    let complete = start.len() < SAMPLE_SIZE;
    let mut sampled = LineReader::over(Box::new(Cursor::new(start.clone())));
    let mut lines = Vec::new();
    while let Some(line) = sampled.next()? {
        lines.push(line.text.into_owned());
    }
    if !complete && lines.len() > 1 {
        lines.pop();
    }
    let rest = Cursor::new(start).chain(BufReader::with_capacity(128 * 1024, reader));
    Ok((lines, LineReader::over(Box::new(rest))))
}

impl LineReader {
    fn over(reader: Box<dyn BufRead + Send>) -> Self {
        Self { reader, buffer: Vec::new(), number: 0, bytes: 0 }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next line without its line ending.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        let read = self.reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let cut = read == MAX_LINE && self.buffer.last() != Some(&b'\n');
        if cut {
            self.bytes += self.reader.skip_until(b'\n')? as u64;
        }
        let mut text = self.buffer.as_slice();
        if self.number == 1 {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let text = match std::str::from_utf8(text) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(text.iter().map(|&byte| char::from(byte)).collect()),
        };
        Ok(Some(Line { number: self.number, text, cut }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_mark_and_latin_1_are_decoded_and_the_sample_is_read_again() {
        let (sample, mut lines) = sampled(Box::new(&b"\xef\xbb\xbfa;b\r\n\xb0C\nlast"[..])).unwrap();
        assert_eq!(sample, ["a;b", "°C", "last"]);
        assert_eq!(lines.next().unwrap().unwrap().text, "a;b");
        assert_eq!(lines.next().unwrap().unwrap().text, "°C");
        assert_eq!(lines.next().unwrap().unwrap().number, 3);
        assert!(lines.next().unwrap().is_none());
        assert_eq!(lines.bytes(), 15);
    }

    #[test]
    fn a_line_above_the_limit_is_cut_and_the_next_is_read() {
        let mut input = vec![b'x'; 3 * MAX_LINE];
        input.extend(b"\nnext\n");
        let (_, mut lines) = sampled(Box::new(Cursor::new(input))).unwrap();
        assert!(lines.next().unwrap().unwrap().cut);
        assert_eq!(lines.next().unwrap().unwrap().text, "next");
    }

    #[test]
    fn utf_16_is_refused_with_the_command_to_convert_it() {
        let error = sampled(Box::new(&b"\xff\xfea\0"[..])).err().unwrap().to_string();
        assert_eq!(error, "the file is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`");
    }
}
