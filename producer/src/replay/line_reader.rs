//! A recording's lines, whoever wrote it and however large it is.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read},
    path::Path,
};

/// How much of a file is looked at before its first row is read.
const SAMPLE: usize = 512 * 1024;
/// The longest line that is kept; the rest of a longer one is read past.
const LONGEST: usize = 1024 * 1024;

/// A recording being read.
pub(super) struct LineReader {
    reader: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// One line.
pub(super) struct Line<'a> {
    /// From 1.
    pub(super) number: u64,
    /// Its text; bytes that are not UTF-8 are read as Latin-1, which is what loggers write then.
    pub(super) text: Cow<'a, str>,
    /// Set when it was over [`LONGEST`] and cut.
    pub(super) cut: bool,
}

/// The start of a recording, whole lines only.
pub(super) struct Sample {
    pub(super) lines: Vec<String>,
}

/// Opens `path`, or standard input for `-`, and answers its size where it has one.
pub(super) fn open(path: &Path) -> io::Result<(Sample, LineReader, Option<u64>)> {
    let (reader, size): (Box<dyn Read + Send>, _) = if path.as_os_str() == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        (Box::new(file), Some(size))
    };
    read(reader).map(|(sample, lines)| (sample, lines, size))
}

fn read(mut reader: Box<dyn Read + Send>) -> io::Result<(Sample, LineReader)> {
    let mut start = Vec::new();
    reader.by_ref().take(SAMPLE as u64).read_to_end(&mut start)?;
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Err(io::Error::other("it is UTF-16; `iconv -f UTF-16 -t UTF-8` makes it readable"));
    }
    let complete = start.len() < SAMPLE;
    let mut sampled = LineReader::over(Box::new(Cursor::new(start.clone())));
    let mut lines = Vec::new();
    while let Some(line) = sampled.next()? {
        lines.push(line.text.into_owned());
    }
    if !complete && lines.len() > 1 {
        lines.pop();
    }
    let rest = Cursor::new(start).chain(BufReader::with_capacity(128 * 1024, reader));
    Ok((Sample { lines }, LineReader::over(Box::new(rest))))
}

impl LineReader {
    fn over(reader: Box<dyn BufRead + Send>) -> Self {
        Self { reader, buffer: Vec::new(), number: 0, bytes: 0 }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line without its line end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        let read = self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let cut = read == LONGEST && self.buffer.last() != Some(&b'\n');
        if cut {
            self.bytes += skip_line(&mut self.reader)?;
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

fn skip_line(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(skipped);
        }
        let (length, done) = match memchr::memchr(b'\n', buffer) {
            Some(end) => (end + 1, true),
            None => (buffer.len(), false),
        };
        reader.consume(length);
        skipped += length as u64;
        if done {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
impl Sample {
    pub(super) fn of(text: &str) -> Self {
        Self { lines: text.lines().map(str::to_owned).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_foreign_letters_are_taken_away_and_the_sample_is_read_again() {
        let (sample, mut lines) = read(Box::new(&b"\xef\xbb\xbfa;b\r\n\xb0C\nlast"[..])).unwrap();
        assert_eq!(sample.lines, ["a;b", "°C", "last"]);
        assert_eq!(lines.next().unwrap().unwrap().text, "a;b");
        assert_eq!(lines.next().unwrap().unwrap().text, "°C");
        assert_eq!(lines.next().unwrap().unwrap().number, 3);
        assert!(lines.next().unwrap().is_none());
        assert_eq!(lines.bytes(), 15);
    }

    #[test]
    fn an_endless_line_costs_itself_only() {
        let mut input = vec![b'x'; 3 * LONGEST];
        input.extend(b"\nnext\n");
        let (_, mut lines) = read(Box::new(Cursor::new(input))).unwrap();
        assert!(lines.next().unwrap().unwrap().cut);
        assert_eq!(lines.next().unwrap().unwrap().text, "next");
    }

    #[test]
    fn utf_16_is_refused_with_what_to_do() {
        let error = read(Box::new(&b"\xff\xfea\0"[..])).err().unwrap().to_string();
        assert_eq!(error, "it is UTF-16; `iconv -f UTF-16 -t UTF-8` makes it readable");
    }
}
