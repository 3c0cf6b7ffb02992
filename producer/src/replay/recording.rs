//! Reads a recording, CSV or JSON, as a sequence of rows.

use std::{io, io::BufRead, path::Path};

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::sensor::{Timestamp, readings_from};
use time::OffsetDateTime;

use super::{
    date_jump::DateJumps,
    encoding::{Encoding, EncodingEvidence},
    layout::Layout,
    line_reader::LineReader,
    mapping::Mapping,
    repeated_hour::RepeatedHours,
    row::Row,
    source::Source,
};

/// An open recording.
pub(super) struct Recording {
    source: Source,
    lines: LineReader<Box<dyn BufRead + Send>>,
    encoding: Option<Encoding>,
    format: Format,
    /// Assumptions about encoding and layout.
    notes: Vec<String>,
    header_read: bool,
    /// Whether a column that is not read was noted.
    unread_noted: bool,
    /// Only if the times are in a named zone.
    repeated_hours: Option<RepeatedHours>,
    /// Only if the order of the dates is a guess.
    date_jumps: Option<DateJumps>,
}

/// The format of a recording.
enum Format {
    Csv(Box<Layout>),
    /// One document per line.
    Ndjson,
    /// One document on several lines.
    Json,
}

/// Largest document that is read into memory, in bytes.
const MAX_DOCUMENT: usize = 256 * 1024 * 1024;

impl Recording {
    /// Opens `path` and detects its encoding and layout. Returns the size of a file as well.
    pub(super) fn open(path: &Path, mapping: &Mapping) -> Result<(Self, Option<u64>), Failure> {
        let refused = |problem: String| Failure::new(Exit::Failed, format!("{}: {problem}", path.display()));
        let (source, size) = Source::open(path).map_err(|error| refused(error.to_string()))?;
        let recording = Self::new(source, mapping, &device(path)).map_err(refused)?;
        Ok((recording, size))
    }

    /// As [`open`](Self::open). `device` is the device of a recording without a column for it.
    pub(super) fn new(mut source: Source, mapping: &Mapping, device: &str) -> Result<Self, String> {
        let unreadable = |error: io::Error| error.to_string();
        let (encoding, note) = match mapping.encoding {
            Some(given) => (Some(given), None),
            None => {
                let evidence = evidence(source.known().map_err(unreadable)?).map_err(unreadable)?;
                (evidence.decided(), evidence.note())
            }
        };
        let known =
            || -> Result<_, String> { Ok(LineReader::new(source.known().map_err(unreadable)?, encoding)) };
        let format = match json(known()?).map_err(unreadable)? {
            Some(format) => format,
            None => {
                let (mut lines, mut failed) = (known()?, None);
                let records = std::iter::from_fn(|| match lines.next() {
                    Ok(record) => record.map(|record| record.text.into_owned()),
                    Err(error) => {
                        failed = Some(error);
                        None
                    }
                });
                let layout = Layout::detect(records, mapping, device);
                if let Some(error) = failed {
                    return Err(unreadable(error));
                }
                Format::Csv(Box::new(layout?))
            }
        };
        let mut notes: Vec<String> = note.into_iter().collect();
        if let Format::Csv(layout) = &format {
            notes.extend(layout.notes.iter().cloned());
        }
        let lines = LineReader::new(source.all().map_err(unreadable)?, encoding);
        let mut recording = Self {
            source,
            lines,
            encoding,
            format,
            notes,
            header_read: false,
            unread_noted: false,
            repeated_hours: None,
            date_jumps: None,
        };
        recording.begin();
        Ok(recording)
    }

    /// Prepares for the first row.
    fn begin(&mut self) {
        let layout = self.layout();
        let zoned = layout.filter(|layout| layout.zone.to_fixed_offset().is_err());
        let guessed = layout.filter(|layout| layout.time.order_guessed);
        let repeated_hours = zoned.map(|layout| RepeatedHours::new(layout.has_one_metric_per_row()));
        let date_jumps = guessed.map(|layout| DateJumps::new(layout.time.order));
        (self.repeated_hours, self.date_jumps) = (repeated_hours, date_jumps);
        (self.header_read, self.unread_noted) = (false, false);
    }

    /// Whether it can be read again.
    pub(super) fn is_file(&self) -> bool {
        self.source.is_file()
    }

    /// Goes back to the first row of a file.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.lines = LineReader::new(self.source.all()?, self.encoding);
        self.begin();
        Ok(())
    }

    /// The layout of a CSV recording.
    pub(super) fn layout(&self) -> Option<&Layout> {
        match &self.format {
            Format::Csv(layout) => Some(layout),
            Format::Ndjson | Format::Json => None,
        }
    }

    /// The encoding, if it is not UTF-8 or was given.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.encoding
    }

    /// Assumptions about encoding and layout.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// Returns the next row and its line number.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Row)>> {
        if let Format::Json = self.format {
            return self.document();
        }
        let mut next = self.in_order()?;
        if let (Some((_, row)), Some(jumps)) = (&mut next, &mut self.date_jumps) {
            row.note = row.time().and_then(|time| jumps.note(time)).or(row.note.take());
        }
        Ok(next)
    }

    /// Returns the next row, with its time decided.
    fn in_order(&mut self) -> io::Result<Option<(u64, Row)>> {
        loop {
            if let Some(row) = self.repeated_hours.as_mut().and_then(RepeatedHours::pop) {
                return Ok(Some(row));
            }
            let next = self.line()?;
            match (next, &mut self.repeated_hours) {
                (Some((line, row)), Some(hours)) => hours.push(line, row),
                (None, Some(hours)) => {
                    hours.finish();
                    return Ok(hours.pop());
                }
                (next, None) => return Ok(next),
            }
        }
    }

    /// Parses the next line.
    fn line(&mut self) -> io::Result<Option<(u64, Row)>> {
        loop {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            let number = line.number;
            let row = match &self.format {
                _ if line.cut => {
                    Row { faults: vec!["the line is longer than 1 MiB".to_owned()], ..Row::default() }
                }
                Format::Csv(layout) => {
                    if layout.has_header && !self.header_read && !super::layout::skipped(&line.text) {
                        self.header_read = true;
                        continue;
                    }
                    let mut row = layout.row(&line.text);
                    if let Some(index) =
                        row.unread.filter(|_| !std::mem::replace(&mut self.unread_noted, true))
                    {
                        let heading = &layout.headings[index];
                        row.note = Some(format!(
                            "column {heading:?} was empty up to here and is not read: the layout of a pipe is \
                             decided by its first 512 KiB, that of a file by all of its rows"
                        ));
                    }
                    row
                }
                Format::Ndjson | Format::Json => parse_document(&line.text),
            };
            return Ok(Some((number, row)));
        }
    }

    fn document(&mut self) -> io::Result<Option<(u64, Row)>> {
        let mut text = String::new();
        while let Some(line) = self.lines.next()? {
            text.push_str(&line.text);
            text.push('\n');
            if text.len() > MAX_DOCUMENT {
                return Err(io::Error::other(
                    "a JSON document larger than 256 MiB; write one record per line instead",
                ));
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some((1, parse_document(&text))))
    }
}

fn parse_document(text: &str) -> Row {
    if text.trim().is_empty() {
        return Row { blank: true, ..Row::default() };
    }
    let now: Timestamp = OffsetDateTime::now_utc().into();
    match readings_from("application/json", text.as_bytes(), now) {
        Ok(records) => {
            Row { readings: records.into_iter().map(|record| record.reading).collect(), ..Row::default() }
        }
        Err(error) => Row { faults: vec![error.to_string()], ..Row::default() },
    }
}

/// The format of a JSON recording. `None` for CSV.
fn json(mut lines: LineReader<impl BufRead>) -> io::Result<Option<Format>> {
    let mut line = || -> io::Result<Option<String>> {
        while let Some(line) = lines.next()? {
            if !line.text.trim().is_empty() {
                return Ok(Some(line.text.trim().to_owned()));
            }
        }
        Ok(None)
    };
    let Some(first) = line()?.filter(|first| first.starts_with(['{', '['])) else { return Ok(None) };
    let complete = serde_json::from_str::<serde::de::IgnoredAny>(&first).is_ok();
    // If only the first line is invalid, the file is NDJSON with one invalid row.
    let next_complete = line()?.is_some_and(|line| line.starts_with('{') && line.ends_with('}'));
    let ndjson = complete || next_complete && first.starts_with('{');
    Ok(Some(if ndjson { Format::Ndjson } else { Format::Json }))
}

/// What the lines tell about their encoding.
fn evidence(mut lines: Box<dyn BufRead + '_>) -> io::Result<EncodingEvidence> {
    let (mut evidence, mut line) = (EncodingEvidence::default(), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        evidence.add(&line);
        line.clear();
    }
    Ok(evidence)
}

/// The device of a file without a device column: the name of the file.
fn device(path: &Path) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("recording");
    // At most 128 bytes, the longest name of a device.
    let plain = |c: char| if c.is_control() || c.is_whitespace() { '_' } else { c };
    let name: String = stem.chars().map(plain).take(32).collect();
    if name == "-" { "recording".to_owned() } else { name }
}

#[cfg(test)]
mod tests;
