//! Reads the records of a recording of any size: lines, or several lines with a quoted field that spans them.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io::{self, BufRead, Read},
};

use super::{encoding::Encoding, fields::open_at_end};

/// Longest line in bytes. The rest of a longer line is skipped.
const MAX_LINE: usize = 1024 * 1024;
/// Most lines that a quoted field may span. A stray quote costs the search for the end of its field.
const MAX_SPANNED: usize = 16;

/// Reads the records of a recording.
pub(super) struct LineReader<R> {
    reader: R,
    /// `None` until a line is not ASCII.
    encoding: Option<Encoding>,
    current: RawLine,
    /// Lines that were read while the end of a quoted field was searched.
    ahead: VecDeque<RawLine>,
    number: u64,
    bytes: u64,
}

/// A line without its line ending, as it is in the file.
#[derive(Default)]
struct RawLine {
    number: u64,
    /// Bytes of the recording up to its end.
    end: u64,
    text: Vec<u8>,
    cut: bool,
}

/// A record.
pub(super) struct Line<'a> {
    /// That of its first line; starts at 1.
    pub(super) number: u64,
    /// The text. A record of several lines has line feeds between them.
    pub(super) text: Cow<'a, str>,
    /// Whether it was longer than [`MAX_LINE`] and is cut.
    pub(super) cut: bool,
}

impl<R: BufRead> LineReader<R> {
    /// If `encoding` is `None`, the first line that is not ASCII decides it.
    pub(super) fn new(reader: R, encoding: Option<Encoding>) -> Self {
        Self { reader, encoding, current: RawLine::default(), ahead: VecDeque::new(), number: 0, bytes: 0 }
    }

    /// Bytes of the recording up to the end of the last record.
    pub(super) fn bytes(&self) -> u64 {
        self.current.end
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        match self.ahead.pop_front() {
            Some(line) => self.current = line,
            None => {
                // The buffer is used again.
                let buffer = std::mem::take(&mut self.current.text);
                match self.read(buffer)? {
                    Some(line) => self.current = line,
                    None => return Ok(None),
                }
            }
        }
        if open_at_end(&self.current.text, false) == Some(true) {
            self.join()?;
        }
        let RawLine { number, text, cut, .. } = &self.current;
        if self.encoding.is_none() && !text.is_ascii() {
            let is_utf_8 = std::str::from_utf8(text).is_ok();
            self.encoding = Some(if is_utf_8 { Encoding::Utf8 } else { Encoding::Windows1252 });
        }
        let text = self.encoding.unwrap_or(Encoding::Utf8).decode(text);
        Ok(Some(Line { number: *number, text, cut: *cut }))
    }

    /// Appends the lines up to the end of a quoted field that the current line begins. If that is not found, a quote is
    /// not closed, and the line stays alone, so that it invalidates one row only.
    fn join(&mut self) -> io::Result<()> {
        for at in 0..MAX_SPANNED {
            if self.ahead.len() == at {
                let Some(line) = self.read(Vec::new())? else { return Ok(()) };
                self.ahead.push_back(line);
            }
            match open_at_end(&self.ahead[at].text, true) {
                Some(true) => {}
                Some(false) => {
                    for line in self.ahead.drain(..=at) {
                        self.current.text.push(b'\n');
                        self.current.text.extend(line.text);
                        self.current.end = line.end;
                        self.current.cut |= line.cut;
                    }
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads the next line of the file.
    fn read(&mut self, mut text: Vec<u8>) -> io::Result<Option<RawLine>> {
        text.clear();
        let read = self.reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut text)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let cut = read == MAX_LINE && text.last() != Some(&b'\n');
        if cut {
            self.bytes += self.reader.skip_until(b'\n')? as u64;
        }
        for ending in [b'\n', b'\r'] {
            if text.last() == Some(&ending) {
                text.pop();
            }
        }
        // Also within a file: files with marks may have been concatenated.
        if text.starts_with(b"\xef\xbb\xbf") {
            text.drain(..3);
        }
        Ok(Some(RawLine { number: self.number, end: self.bytes, text, cut }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(input: &[u8]) -> Vec<(u64, String)> {
        let mut lines = LineReader::new(input, None);
        let mut records = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            records.push((line.number, line.text.into_owned()));
        }
        assert_eq!(lines.bytes(), input.len() as u64);
        records
    }

    #[test]
    fn byte_order_marks_are_removed_and_the_first_line_that_is_not_ascii_decides_the_encoding() {
        assert_eq!(
            records(b"\xef\xbb\xbfa;b\r\n\xb0C\n\xc2\xb0"),
            [(1, "a;b".into()), (2, "°C".into()), (3, "Â°".into())]
        );
        assert_eq!(records("a\n\u{feff}°\n".as_bytes()), [(1, "a".into()), (2, "°".into())]);
    }

    #[test]
    fn a_line_above_the_limit_is_cut_and_the_next_is_read() {
        let mut input = vec![b'x'; 3 * MAX_LINE];
        input.extend(b"\nnext\n");
        let mut lines = LineReader::new(&input[..], None);
        assert!(lines.next().unwrap().unwrap().cut);
        assert_eq!(lines.next().unwrap().unwrap().text, "next");
    }

    #[test]
    fn a_quoted_field_may_span_lines_and_a_stray_quote_may_not() {
        let spanning = b"time,\"temp\r\n(C)\",\"hum\n(%)\"\n1,\"a \"\"\nb\",3\n";
        assert_eq!(
            records(spanning),
            [(1, "time,\"temp\n(C)\",\"hum\n(%)\"".into()), (4, "1,\"a \"\"\nb\",3".into())]
        );
        // The quote stands for inches, the field was cut, or its end is not in sight.
        assert_eq!(records(b"1,12\",3\n2,13\",3\n").len(), 2);
        assert_eq!(records(b"1,\"pum\n2,\"pump\",3\n").len(), 2);
        assert_eq!(records(format!("1,\"{}2,3\",4\n", "a\n".repeat(20)).as_bytes()).len(), 21);
        assert_eq!(records(br#"{"a":"x\","}"#).len(), 1);
    }
}
