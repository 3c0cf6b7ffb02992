//! Lines in InfluxDB's protocol that are published together. Each is accepted or refused on its own.

use bytes::Bytes;
use garenne_protocol::{
    sensor::{BadField, Limits as RecordLimits, Record, Timestamp},
    task::TaskId,
};

use crate::{
    influx::{LineReadings, Precision, bytes_readings},
    ingest::{Format, Ingest, Parsed},
    left_out::Notes,
    limits::Limits,
    memory::Account,
    payload::{Payload, RecordCount},
    record_tasks::{RequestProperties, devices},
    refusal::Refusal,
};

/// Bytes of a batch beyond which no further line is added.
const FULL_BYTES: usize = 16 * 1024;
/// Tags and fields of a batch beyond which no further line is added.
const FULL_PAIRS: usize = 1000;
/// Memory of a line's refusal, besides its bytes.
const LINE: usize = 512;

/// Lines of one connection, which share the buffer that they were read into.
#[derive(Clone, Debug)]
pub(super) struct LineBatch {
    /// Each line with its number.
    lines: Vec<(u64, Bytes)>,
    bytes: usize,
    pairs: usize,
    defaults: LineDefaults,
}

/// Properties that the readings of lines without a timestamp share in every attempt to publish them.
#[derive(Clone, Debug)]
struct LineDefaults {
    precision: Precision,
    arrived: Timestamp,
    id: TaskId,
}

/// A refused line, or a field of a line that is left out.
#[derive(Debug)]
pub(super) struct RefusedLine {
    pub(super) number: u64,
    pub(super) refusal: Refusal,
    /// False if only a field of the line is left out.
    pub(super) is_whole: bool,
}

impl Notes for Vec<RefusedLine> {
    fn memory(&self) -> usize {
        self.len() * LINE
    }
}

/// Parses the text of a batch.
pub(super) struct LineParser {
    numbers: Vec<u64>,
    defaults: LineDefaults,
}

impl LineBatch {
    /// An empty batch. Lines without a timestamp have the time `arrived`.
    pub(super) fn new(precision: Precision, arrived: Timestamp) -> Self {
        let defaults = LineDefaults { precision, arrived, id: TaskId::random() };
        Self { lines: Vec::new(), bytes: 0, pairs: 0, defaults }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.lines.len() >= limits.max_in_flight
            || self.bytes >= FULL_BYTES
            || self.pairs >= FULL_PAIRS.min(limits.max_records)
    }

    pub(super) fn add(&mut self, number: u64, line: Bytes) {
        self.bytes += line.len() + 1;
        self.pairs += count_pairs(&line);
        self.lines.push((number, line));
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.lines.iter().map(|(number, _)| *number)
    }

    /// Both halves of a batch of several lines.
    pub(super) fn halves(mut self) -> [Self; 2] {
        let second = self.lines.split_off(self.lines.len() / 2);
        let of = |lines: Vec<(u64, Bytes)>| Self {
            bytes: lines.iter().map(|(_, line)| line.len() + 1).sum(),
            pairs: lines.iter().map(|(_, line)| count_pairs(line)).sum(),
            lines,
            defaults: self.defaults.clone(),
        };
        [of(std::mem::take(&mut self.lines)), of(second)]
    }

    /// The text, and its parser.
    pub(super) fn payload(&self, account: &Account) -> Result<(Payload, LineParser), Refusal> {
        let memory = account.reserve(self.bytes + self.lines.len() * LINE)?;
        let mut text = Vec::with_capacity(self.bytes);
        for (_, line) in &self.lines {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        let parser = LineParser { numbers: self.numbers().collect(), defaults: self.defaults.clone() };
        Ok((Payload::plain(text, memory), parser))
    }
}

/// An upper bound of the readings in lines: each is a field with a value.
pub(super) fn count_pairs(lines: &[u8]) -> usize {
    memchr::memchr_iter(b'=', lines).count()
}

/// Lines that are invalid or that the sender may not send are returned, and the others are recorded.
impl Format for LineParser {
    type Notes = Vec<RefusedLine>;

    fn count(&self, _: &RequestProperties) -> RecordCount {
        RecordCount::Weight(count_pairs)
    }

    fn parse(
        self,
        text: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<Self::Notes>, Refusal> {
        let kind = ingest.reading_kind()?;
        let check = |records: &[Record]| request.caller.check_scope(kind.as_str(), devices(records));
        let (records, refused) = self.records(&text, &ingest.records, check);
        Ok(Parsed::readings(kind, records, refused))
    }
}

impl LineParser {
    /// The records of all lines that are valid and that `check` allows, and the other lines.
    fn records(
        &self,
        text: &[u8],
        limits: &RecordLimits,
        check: impl Fn(&[Record]) -> Result<(), Refusal>,
    ) -> (Vec<Record>, Vec<RefusedLine>) {
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        let LineDefaults { precision, arrived, id } = &self.defaults;
        for (number, line) in self.numbers.iter().copied().zip(text.split(|byte| *byte == b'\n')) {
            let bad_line = |error: BadField| Refusal::bad_line(number, error.in_record(0));
            let parsed = bytes_readings(line, *precision, *arrived, limits).map_err(bad_line);
            let allowed = parsed.and_then(|readings| match check(&readings.records) {
                Ok(()) => Ok(readings),
                Err(refusal) => Err(refusal.of_line(number)),
            });
            match allowed {
                Ok(LineReadings { records, left_out }) => {
                    all.extend(records.into_iter().enumerate().map(|(index, mut record)| {
                        // A reading without a time of its own has no other id that is the same in every attempt.
                        record.id = record.time_assumed.then(|| format!("{id}-{number}-{index}"));
                        record
                    }));
                    let fields = left_out.into_iter().map(bad_line);
                    refused.extend(fields.map(|refusal| RefusedLine { number, refusal, is_whole: false }));
                }
                Err(refusal) => refused.push(RefusedLine { number, refusal, is_whole: true }),
            }
        }
        (all, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lines: &[&'static str]) -> LineBatch {
        let arrived = Timestamp::from_micros(7_000_000).unwrap();
        let mut batch = LineBatch::new(Precision::parse(Some("s")).unwrap(), arrived);
        for (index, line) in lines.iter().enumerate() {
            batch.add(10 + index as u64, Bytes::from_static(line.as_bytes()));
        }
        batch
    }

    fn parsed(batch: &LineBatch) -> (Vec<Record>, Vec<RefusedLine>) {
        let budget = crate::memory::MemoryBudget::new(&Limits::default());
        let (payload, parser) = batch.payload(&budget.account(None)).unwrap();
        let (text, _memory) = payload.small(garenne_common::config::Size::kib(64)).unwrap();
        let check =
            |records: &[Record]| match records.iter().any(|record| &*record.reading.device == "foreign") {
                true => Err(Refusal::foreign_device("foreign", "roof")),
                false => Ok(()),
            };
        parser.records(&text, &RecordLimits::default(), check)
    }

    #[test]
    fn each_line_is_refused_on_its_own_and_named_by_its_number() {
        let lines = batch(&[
            "m,device=d v=1 5",
            "nonsense",
            "# comment",
            "m,device=foreign v=1",
            "m,device=d v=2,w=3",
        ]);
        let (records, refused) = parsed(&lines);
        let values: Vec<f64> = records.iter().map(|record| record.reading.value).collect();
        assert_eq!(values, [1.0, 2.0, 3.0]);
        let refused: Vec<_> = refused.iter().map(|line| (line.number, line.refusal.line())).collect();
        assert_eq!((refused[0].0, refused[1].0, refused.len()), (11, 13, 2));
        assert!(
            refused[0].1.starts_with("error malformed line 11: line: not line protocol: "),
            "{refused:?}"
        );
        assert_eq!(
            refused[1].1,
            "error foreign-device line 13: device: sender \"roof\" may not send \"foreign\""
        );
    }

    #[test]
    fn a_reading_without_a_time_has_the_same_id_and_time_in_every_attempt() {
        let lines = batch(&["m v=1 5", "m v=1", "m v=1,w=1"]);
        let (first, _) = parsed(&lines);
        assert_eq!(first, parsed(&lines).0);
        let halves: Vec<Record> = lines.halves().iter().flat_map(|half| parsed(half).0).collect();
        assert_eq!(halves, first);
        let ids: std::collections::BTreeSet<_> =
            first.iter().filter_map(|record| record.id.clone()).collect();
        assert_eq!((first[0].id.as_ref(), ids.len()), (None, 3));
        assert!(ids.iter().all(|id| TaskId::parse(id).is_ok()));
        assert!(first.iter().all(|record| !parsed(&batch(&["m v=1"])).0.contains(record)), "another batch");
    }
}
