//! A recording as a sequence of rows, CSV or JSON.

use std::{io, path::Path};

use garenne_common::exit::{Exit, Failure};
use garenne_protocol::sensor::{Timestamp, readings_from};
use time::OffsetDateTime;

use super::{
    layout::Layout,
    line_reader::{self, LineReader, Sample},
    mapping::Mapping,
    row::Row,
};

/// A recording, opened and understood.
pub(super) struct Recording {
    lines: LineReader,
    form: Form,
    header_read: bool,
}

enum Form {
    Csv(Box<Layout>),
    /// A document a line.
    Ndjson,
    /// One document over many lines.
    Json,
}

/// A row with its line number.
pub(super) struct Numbered {
    pub(super) line: u64,
    pub(super) row: Row,
}

/// The largest document that is read whole.
const WHOLE: usize = 256 * 1024 * 1024;

impl Recording {
    /// Opens `path` and finds out how it is laid out. Answers the size as well, where there is one.
    ///
    /// # Errors
    /// It cannot be read or understood; the line says what to do.
    pub(super) fn open(path: &Path, mapping: &Mapping) -> Result<(Self, Option<u64>), Failure> {
        let refused = |problem: String| Failure::new(Exit::Failed, format!("{}: {problem}", path.display()));
        let (sample, lines, size) = line_reader::open(path).map_err(|error| refused(error.to_string()))?;
        let form = match json(&sample) {
            Some(form) => form,
            None => {
                let layout = Layout::detect(&sample, mapping, &device(path)).map_err(refused)?;
                Form::Csv(Box::new(layout))
            }
        };
        Ok((Self { lines, form, header_read: false }, size))
    }

    /// What was concluded about the file.
    pub(super) fn notes(&self) -> &[String] {
        match &self.form {
            Form::Csv(layout) => &layout.notes,
            Form::Ndjson | Form::Json => &[],
        }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// The next row.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub(super) fn next(&mut self) -> io::Result<Option<Numbered>> {
        if let Form::Json = self.form {
            return self.whole();
        }
        loop {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            let number = line.number;
            let row = match &self.form {
                _ if line.cut => Row { faults: vec!["the line is over 1 MiB".to_owned()], ..Row::default() },
                Form::Csv(layout) => {
                    if layout.has_header && !self.header_read && !super::layout::skipped(&line.text) {
                        self.header_read = true;
                        continue;
                    }
                    layout.row(&line.text)
                }
                Form::Ndjson | Form::Json => document(&line.text),
            };
            return Ok(Some(Numbered { line: number, row }));
        }
    }

    fn whole(&mut self) -> io::Result<Option<Numbered>> {
        let mut text = String::new();
        while let Some(line) = self.lines.next()? {
            text.push_str(&line.text);
            text.push('\n');
            if text.len() > WHOLE {
                return Err(io::Error::other(
                    "one JSON document over 256 MiB; write a record a line instead",
                ));
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(Numbered { line: 1, row: document(&text) }))
    }
}

fn document(text: &str) -> Row {
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

fn json(sample: &Sample) -> Option<Form> {
    let first = sample.lines.iter().map(|line| line.trim()).find(|line| !line.is_empty())?;
    if !first.starts_with(['{', '[']) {
        return None;
    }
    let complete = serde_json::from_str::<serde::de::IgnoredAny>(first).is_ok();
    // A broken first line is one broken row, where the second stands on its own.
    let second = sample.lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).nth(1);
    let next_complete = second.is_some_and(|line| line.starts_with('{') && line.ends_with('}'));
    Some(if complete || next_complete && first.starts_with('{') { Form::Ndjson } else { Form::Json })
}

/// The device of a file that names none: the file's own name.
fn device(path: &Path) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("recording");
    let name: String =
        stem.chars().map(|c| if c.is_control() || c.is_whitespace() { '_' } else { c }).take(64).collect();
    if name == "-" { "recording".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> Vec<(u64, usize, usize)> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let (mut source, _) = Recording::open(file.path(), &Mapping::default()).unwrap();
        let mut rows = Vec::new();
        while let Some(Numbered { line, row }) = source.next().unwrap() {
            rows.push((line, row.readings.len(), row.faults.len()));
        }
        rows
    }

    #[test]
    fn csv_ndjson_and_one_document_are_told_apart() {
        let reading = r#"{"device":"d","metric":"m","value":1,"time":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(read("time,a,b\n2026-01-01T00:00:00Z,1,2\n"), [(2, 2, 0)]);
        assert_eq!(read(&format!("{reading}\n{{broken\n{reading}\n")), [(1, 1, 0), (2, 0, 1), (3, 1, 0)]);
        assert_eq!(read(&format!("[\n{reading},\n{reading}\n]\n")), [(1, 2, 0)]);
        assert_eq!(read("# made by hand\ntime,a\n2026-01-01T00:00:00Z,1\n"), [(1, 0, 0), (3, 1, 0)]);
    }
}
