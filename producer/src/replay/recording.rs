//! Reads a recording, CSV or JSON, as a sequence of rows.

use std::{
    io::{self, Read},
    path::Path,
};

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::sensor::{Timestamp, readings_from};
use time::OffsetDateTime;

use super::{
    date_jump::DateJumps,
    layout::Layout,
    line_reader::{self, LineReader},
    mapping::Mapping,
    repeated_hour::RepeatedHours,
    row::Row,
};
use crate::input;

/// An open recording.
pub(super) struct Recording {
    lines: LineReader,
    format: Format,
    header_read: bool,
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
    /// Opens `path` and detects its layout. Returns the size of a file as well.
    ///
    /// # Errors
    /// It cannot be read, or its layout is unknown.
    pub(super) fn open(path: &Path, mapping: &Mapping) -> Result<(Self, Option<u64>), Failure> {
        let refused = |problem: String| Failure::new(Exit::Failed, format!("{}: {problem}", path.display()));
        let (reader, size) = input::open(path).map_err(|error| refused(error.to_string()))?;
        let recording = Self::new(reader, mapping, &device(path)).map_err(refused)?;
        Ok((recording, size))
    }

    /// As [`open`](Self::open). `device` is the device of a recording without a column for it.
    pub(super) fn new(reader: Box<dyn Read + Send>, mapping: &Mapping, device: &str) -> Result<Self, String> {
        let (sample, lines) = line_reader::sampled(reader).map_err(|error| error.to_string())?;
        let format = match json(&sample) {
            Some(format) => format,
            None => Format::Csv(Box::new(Layout::detect(&sample, mapping, device)?)),
        };
        let layout = if let Format::Csv(layout) = &format { Some(layout) } else { None };
        let zoned = layout.filter(|layout| layout.zone.to_fixed_offset().is_err());
        let guessed = layout.filter(|layout| layout.time.order_guessed);
        Ok(Self {
            repeated_hours: zoned.map(|layout| RepeatedHours::new(layout.has_one_metric_per_row())),
            date_jumps: guessed.map(|layout| DateJumps::new(layout.time.order)),
            lines,
            format,
            header_read: false,
        })
    }

    /// The layout of a CSV recording.
    pub(super) fn layout(&self) -> Option<&Layout> {
        match &self.format {
            Format::Csv(layout) => Some(layout),
            Format::Ndjson | Format::Json => None,
        }
    }

    /// Assumptions about the layout.
    pub(super) fn notes(&self) -> &[String] {
        self.layout().map_or(&[], |layout| &layout.notes)
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// Returns the next row and its line number.
    ///
    /// # Errors
    /// Reading the file failed.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Row)>> {
        if let Format::Json = self.format {
            return self.document();
        }
        let mut next = self.in_order()?;
        if let (Some((_, row)), Some(jumps)) = (&mut next, &mut self.date_jumps) {
            row.note = row.time().and_then(|time| jumps.note(time));
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
                    layout.row(&line.text)
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

fn json(sample: &[String]) -> Option<Format> {
    let first = sample.iter().map(|line| line.trim()).find(|line| !line.is_empty())?;
    if !first.starts_with(['{', '[']) {
        return None;
    }
    let complete = serde_json::from_str::<serde::de::IgnoredAny>(first).is_ok();
    // If only the first line is invalid, the file is NDJSON with one invalid row.
    let second = sample.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).nth(1);
    let next_complete = second.is_some_and(|line| line.starts_with('{') && line.ends_with('}'));
    Some(if complete || next_complete && first.starts_with('{') { Format::Ndjson } else { Format::Json })
}

/// The device of a file without a device column: the name of the file.
fn device(path: &Path) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("recording");
    let name: String =
        stem.chars().map(|c| if c.is_control() || c.is_whitespace() { '_' } else { c }).take(64).collect();
    if name == "-" { "recording".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(u64, usize, usize)> {
        let mut recording =
            Recording::new(Box::new(io::Cursor::new(text.to_owned())), &Mapping::default(), "file").unwrap();
        let mut rows = Vec::new();
        while let Some((line, row)) = recording.next().unwrap() {
            rows.push((line, row.readings.len(), row.faults.len()));
        }
        rows
    }

    #[test]
    fn csv_ndjson_and_json_are_detected() {
        let reading = r#"{"device":"d","metric":"m","value":1,"time":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(read("time,a,b\n2026-01-01T00:00:00Z,1,2\n"), [(2, 2, 0)]);
        assert_eq!(read(&format!("{reading}\n{{broken\n{reading}\n")), [(1, 1, 0), (2, 0, 1), (3, 1, 0)]);
        assert_eq!(read(&format!("[\n{reading},\n{reading}\n]\n")), [(1, 2, 0)]);
        assert_eq!(read("# made by hand\ntime,a\n2026-01-01T00:00:00Z,1\n"), [(1, 0, 0), (3, 1, 0)]);
    }
    fn notes_of_rows(text: &str, mapping: &Mapping) -> Vec<(u64, String)> {
        let mut recording =
            Recording::new(Box::new(io::Cursor::new(text.to_owned())), mapping, "file").unwrap();
        std::iter::from_fn(|| recording.next().unwrap())
            .filter_map(|(line, row)| Some((line, row.note.or_else(|| row.faults.first().cloned())?)))
            .collect()
    }

    #[test]
    fn ambiguous_dates_that_jump_are_noted_with_their_line() {
        let text = "date;v\n01/02/2020;1\n02/02/2020;2\n01/03/2020;2\n";
        let note = "the time jumps by 28 days to 2020-03-01T00:00:00Z; ambiguous dates are read day first \
                    (--date-order decides)";
        assert_eq!(notes_of_rows(text, &Mapping::default()), [(4, note.to_owned())]);
        assert_eq!(notes_of_rows(&text.replace("02/02", "13/02"), &Mapping::default()), []);
    }

    #[test]
    fn the_hours_of_a_clock_change_are_refused_with_their_lines() {
        let mapping = Mapping { zone: Some("Europe/Berlin".to_owned()), ..Mapping::default() };
        let text = "time,v\n2026-03-29 01:59,1\n2026-03-29 02:00,1\n2026-10-25 01:00,1\n2026-10-25 02:00,1\n";
        let missing =
            "\"2026-03-29 02:00\" does not exist in Europe/Berlin: the clock is set forward 60 min over it";
        let twice = "\"2026-10-25 02:00\" in Europe/Berlin occurs twice, and the order of the rows does not tell which \
                     is meant";
        assert_eq!(notes_of_rows(text, &mapping), [(3, missing.to_owned()), (5, twice.to_owned())]);
        let twice = format!("{text}2026-10-25 02:00,2\n");
        assert_eq!(notes_of_rows(&twice, &mapping), [(3, missing.to_owned())]);
    }

    #[test]
    fn compressed_recordings_are_refused() {
        let open = Recording::new(Box::new(&b"\x1f\x8b\x08\0"[..]), &Mapping::default(), "file");
        assert!(open.err().unwrap().starts_with("the input is compressed (gzip)"));
    }
}
