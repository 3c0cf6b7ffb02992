//! Reads a recording on a thread of its own, and counts its rows.

use std::{io, sync::Arc, time::Duration};

use garenne_common::supervise::{ThreadHandle, spawn_thread};
use garenne_protocol::sensor::{Fault, Limits, Reading};
use serde::Serialize;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::timeout};

use super::{recording::Recording, repeated_keys::RepeatedKeys};
use crate::progress::Progress;

/// Rows that the reader may read ahead.
const READ_AHEAD: usize = 1024;
/// Invalid rows, and contradictions, that are printed; further ones are only counted.
const MAX_PRINTED: u64 = 20;
const FIRST_UNPRINTED: u64 = MAX_PRINTED + 1;

/// How long the reader may take to end after the receiver of its rows is dropped.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The readings of one row.
pub(super) struct RowReadings {
    pub(super) readings: Vec<Reading>,
    /// Bytes of the recording up to this row.
    pub(super) bytes: u64,
}

/// Counters of the reader.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ReadCounts {
    pub(super) rows: u64,
    pub(super) readings: u64,
    pub(super) missing: u64,
    /// Rows without a reading because of what is wrong with them. Nothing of them is sent.
    pub(super) malformed: u64,
    /// Values that cannot be read, in rows whose other values are sent.
    pub(super) malformed_values: u64,
    pub(super) blank: u64,
    /// Readings before the setting `min_time`, which are not sent.
    pub(super) before_min_time: u64,
    /// Keys (device, metric and time) that the recording has with several values.
    pub(super) keys_with_differing_values: u64,
    /// Their readings with another value than the first one.
    pub(super) contradicting_readings: u64,
}

impl ReadCounts {
    /// What is not stored as the recording has it.
    pub(super) fn notes(&self) -> Vec<String> {
        let early = (self.before_min_time > 0).then(|| {
            format!(
                "{} of {} readings are before min_time and are not sent; for an old recording, give the setting an \
                 earlier time here, at gateways and at workers",
                self.before_min_time,
                self.before_min_time + self.readings
            )
        });
        early.into_iter().chain(self.contradictions()).collect()
    }

    /// What becomes of the readings that contradict an earlier one.
    fn contradictions(&self) -> Option<String> {
        let Self { keys_with_differing_values: keys, contradicting_readings: readings, .. } = self;
        (*keys > 0).then(|| {
            format!(
                "{keys} keys (device, metric and time) with differing values: of each, one value is stored and the \
                 others, {readings} in all, become dead letters (conflict), unless on_conflict is replace"
            )
        })
    }
}

/// Starts the thread that reads the recording, and returns its rows. What is wrong with them is printed to `progress`,
/// if there is one.
pub(super) fn spawn_reader(
    mut recording: Recording,
    limits: Limits,
    progress: Option<Arc<Progress>>,
) -> io::Result<(mpsc::Receiver<RowReadings>, ThreadHandle<io::Result<ReadCounts>>)> {
    let (sender, rows) = mpsc::channel(READ_AHEAD);
    // Not a blocking task of the runtime, whose shutdown would wait for it: a read from a silent pipe cannot be
    // cancelled.
    let reader = spawn_thread("reader", move || {
        read(&mut recording, &limits, progress.as_deref(), |row| sender.blocking_send(row).is_ok())
    })?;
    Ok((rows, reader))
}

/// The counters of the reader, after the receiver of its rows was dropped. An error means that the rows that were
/// sent are not the whole recording.
pub(super) async fn read_counts(reader: ThreadHandle<io::Result<ReadCounts>>) -> anyhow::Result<ReadCounts> {
    match timeout(READER_TIMEOUT, reader).await {
        Ok(result) => Ok(result??),
        // After an interruption the reader may still wait for input.
        Err(_) => Ok(ReadCounts::default()),
    }
}

/// Reads until the end of the recording, or until `send` returns false.
pub(super) fn read(
    recording: &mut Recording,
    limits: &Limits,
    progress: Option<&Progress>,
    mut send: impl FnMut(RowReadings) -> bool,
) -> io::Result<ReadCounts> {
    let (mut count, mut keys, mut faulty) = (ReadCounts::default(), RepeatedKeys::default(), 0);
    let print = |line: u64, text: &str| {
        progress.inspect(|progress| progress.print(format_args!("line {line}: {text}")));
    };
    let now = OffsetDateTime::now_utc().into();
    while let Some((line, mut row)) = recording.next()? {
        if row.blank {
            count.blank += 1;
            continue;
        }
        count.rows += 1;
        let mut out_of_bounds = None;
        row.readings.retain(|reading| {
            let Err(bad) = limits.check_time("time", reading.time, now) else { return true };
            let bad = bad.in_record(0);
            count.before_min_time += u64::from(matches!(bad.code, Fault::BeforeMinTime));
            out_of_bounds = Some(bad.message);
            false
        });
        row.faults.extend(out_of_bounds);
        count.missing += row.missing;
        count.readings += row.readings.len() as u64;
        if let Some(note) = row.note {
            print(line, &note);
        }
        if !row.faults.is_empty() {
            let others_are_sent = !row.readings.is_empty();
            match others_are_sent {
                true => count.malformed_values += row.faults.len() as u64,
                false => count.malformed += 1,
            }
            faulty += 1;
            let effect = if others_are_sent { "the other columns are sent" } else { "the row is not sent" };
            match faulty {
                ..=MAX_PRINTED => print(line, &format!("{}; {effect}", row.faults.join("; "))),
                FIRST_UNPRINTED => print(line, "this and further rows with such values are counted only"),
                _ => {}
            }
        }
        for contradiction in row.readings.iter().filter_map(|reading| keys.add(line, reading)) {
            count.contradicting_readings += 1;
            count.keys_with_differing_values += u64::from(contradiction.first);
            match count.contradicting_readings {
                ..=MAX_PRINTED => print(line, &contradiction.text),
                FIRST_UNPRINTED => print(line, "this and further differing values are counted only"),
                _ => {}
            }
        }
        if !row.readings.is_empty() && !send(RowReadings { readings: row.readings, bytes: recording.bytes() })
        {
            break;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, panic::resume_unwind};

    use crate::replay::{
        mapping::{Column, Mapping},
        source::Source,
    };

    use super::*;

    struct PanickingInput;

    impl Read for PanickingInput {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            // Without the panic hook, which would print a backtrace.
            resume_unwind(Box::new("no buffer"))
        }
    }

    async fn read_all(end: impl Read + Send + 'static) -> (usize, anyhow::Result<ReadCounts>) {
        let row = "2026-01-01T00:00:00Z,1";
        // The comment is longer than the sample from which the layout is detected.
        let lines = format!("{row}\n#{}\n{row}\n", "x".repeat(600_000));
        let input = io::Cursor::new(lines).chain(end);
        let source = Source::pipe(Box::new(input)).unwrap();
        let recording = Recording::new(source, &Mapping::default(), "file").unwrap();
        let progress = Arc::new(Progress::new("replay", None));
        let (mut rows, reader) = spawn_reader(recording, Limits::default(), Some(progress)).unwrap();
        let mut received = 0;
        while rows.recv().await.is_some() {
            received += 1;
        }
        (received, read_counts(reader).await)
    }

    #[tokio::test]
    async fn a_panic_of_the_reader_is_an_error_and_not_the_end_of_the_recording() {
        let (rows, counts) = read_all(io::empty()).await;
        let all = ReadCounts { rows: 2, readings: 2, blank: 1, ..ReadCounts::default() };
        assert_eq!((rows, counts.unwrap()), (2, all));
        let (rows, counts) = read_all(PanickingInput).await;
        assert_eq!((rows, counts.unwrap_err().to_string().as_str()), (2, "panicked: no buffer"));
    }

    /// A row with one value that cannot be read is sent without it.
    #[test]
    fn values_that_cannot_be_read_are_told_from_rows() {
        let text = "time;t;u;v\n1763600000;1;2;3\n1763600001;x;2;\n1763600002;x;y;3\n1763600003;x;y;z\nnever;1;2;3\n\
                    1763600004;x;;\n";
        let source = Source::pipe(Box::new(io::Cursor::new(text))).unwrap();
        let columns = ["t", "u", "v"].map(|name| (name.to_owned(), Column::default()));
        let mapping = Mapping { columns: columns.into(), ..Mapping::default() };
        let mut recording = Recording::new(source, &mapping, "file").unwrap();
        let counts = read(&mut recording, &Limits::default(), None, |_| true).unwrap();
        let expected = ReadCounts {
            rows: 6,
            readings: 5,
            missing: 3,
            malformed: 3,
            malformed_values: 3,
            ..ReadCounts::default()
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn readings_before_min_time_and_contradictions_are_counted_with_what_becomes_of_them() {
        let text = "time,t,t\n1711190482,1,1\n1711190483,1,2\n171119048,3,3\n";
        let source = Source::pipe(Box::new(io::Cursor::new(text))).unwrap();
        let mapping = Mapping { time: vec!["time".to_owned()], ..Mapping::default() };
        let mut recording = Recording::new(source, &mapping, "file").unwrap();
        let limits =
            Limits { min_time: Some(garenne_protocol::sensor::Timestamp::DEFAULT_MIN), ..Limits::default() };
        let counts = read(&mut recording, &limits, None, |_| true).unwrap();
        let expected = ReadCounts {
            rows: 3,
            readings: 4,
            malformed: 1,
            before_min_time: 2,
            keys_with_differing_values: 1,
            contradicting_readings: 1,
            ..ReadCounts::default()
        };
        assert_eq!(counts, expected);
        assert_eq!(
            counts.notes(),
            [
                "2 of 6 readings are before min_time and are not sent; for an old recording, give the setting an earlier \
                 time here, at gateways and at workers",
                "1 keys (device, metric and time) with differing values: of each, one value is stored and the others, 1 \
                 in all, become dead letters (conflict), unless on_conflict is replace"
            ]
        );
    }
}
