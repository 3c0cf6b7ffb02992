//! What is dropped of a body in InfluxDB's line protocol.

use std::collections::BTreeMap;

use garenne_protocol::sensor::{BadField, Fault, KeyedValues, Limits, Record, Timestamp};
use garenne_publish::READING_KIND;

use crate::{
    influx::{LineReadings, Precision, line_readings, lines_of},
    ingest::{Format, Ingest, Parsed, now},
    left_out::Notes,
    line_batch::count_pairs,
    payload::RecordCount,
    record_tasks::RequestProperties,
    refusal::Refusal,
};

/// Most lines and fields that an answer names. Writers log one message.
const MAX_NAMED: usize = 100;
/// Most of them that are in its message.
const MAX_IN_MESSAGE: usize = 5;

/// A body in InfluxDB's line protocol, with timestamps of this unit. It may hold no line. Lines that are invalid or that the
/// sender may not send are dropped, and so are fields that cannot be readings.
pub(super) struct LineBody(pub(super) Precision);

impl Format for LineBody {
    type Notes = DroppedLines;

    fn count(&self, _: &RequestProperties) -> RecordCount {
        RecordCount::Weight(count_pairs)
    }

    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<DroppedLines>, Refusal> {
        let (kind, caller) = (ingest.reading_kind()?, &request.caller);
        caller.check_scope(kind.as_str(), std::iter::empty())?;
        let is_allowed = |device: &str| match caller.allows_device(device) {
            true => Ok(()),
            false => Err(Refusal::foreign_device(device, &caller.name)),
        };
        // The same lines are other readings with another precision.
        let now = now();
        let keys = request.keys(&format!("{READING_KIND} in {}", self.0.symbol()), &body, now);
        let (records, dropped) = DroppedLines::sort(body, self.0, now, &ingest.records, is_allowed)?;
        if !dropped.is_empty() && (records.is_empty() || request.atomic) {
            return Err(dropped.refusal());
        }
        Ok(Parsed { keys, ..Parsed::at_positions(kind, records, dropped) })
    }
}

/// Lines that are refused and fields that are left out.
#[derive(Debug, Default)]
pub(super) struct DroppedLines {
    /// The first of them.
    pub(super) named: Vec<Refusal>,
    /// All of them by code.
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl Notes for DroppedLines {
    fn memory(&self) -> usize {
        self.named.len() * (size_of::<Refusal>() + 512)
    }
}

impl DroppedLines {
    /// The readings of a body, and what is dropped of it. `is_allowed` is asked for the device of each line. The position of
    /// a reading depends on the body alone, so that a line which is refused once changes no id of another. Refuses a
    /// body with more readings than `limits` allow.
    fn sort(
        mut body: Vec<u8>,
        precision: Precision,
        now: Timestamp,
        limits: &Limits,
        is_allowed: impl Fn(&str) -> Result<(), Refusal>,
    ) -> Result<(Vec<(usize, Record)>, Self), Refusal> {
        let (mut all, mut dropped, mut position) = (Vec::new(), Self::default(), 0);
        let mut values = KeyedValues::default();
        for (number, line) in lines_of(&mut body) {
            let bad_line = |error: BadField| Refusal::bad_line(number, error.in_record(0));
            let first = position;
            position += line.as_ref().map_or(0, |line| count_pairs(line.as_bytes()));
            let readings = line.and_then(|line| line_readings(line, precision, now, limits));
            let allowed = readings.map_err(bad_line).and_then(|readings| {
                let device = readings.records.first().map(|record| &*record.reading.device);
                device.map_or(Ok(()), &is_allowed).map_err(|refusal| refusal.of_line(number))?;
                Ok(readings)
            });
            match allowed {
                Ok(LineReadings { records, left_out }) => {
                    for (position, record) in (first..).zip(records) {
                        match values.add(&record.reading) {
                            Ok(_) => all.push((position, record)),
                            Err(error) => dropped.add(bad_line(error)),
                        }
                    }
                    left_out.into_iter().for_each(|error| dropped.add(bad_line(error)));
                }
                Err(refusal) => dropped.add(refusal),
            }
            if all.len() > limits.records {
                let message = format!("more than {} readings", limits.records);
                return Err(bad_line(Fault::TooManyRecords.in_field("body", message)));
            }
        }
        Ok((all, dropped))
    }

    fn add(&mut self, refusal: Refusal) {
        *self.counts.entry(refusal.code).or_default() += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(refusal);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The refusal of a body of which nothing is stored.
    fn refusal(self) -> Refusal {
        Refusal::nothing_remains(self.named)
    }

    /// What InfluxDB says of a body of which it has stored the other lines.
    pub(super) fn message(&self) -> String {
        let texts = self.named.iter().take(MAX_IN_MESSAGE).map(|refusal| refusal.message.as_str());
        let texts: Vec<_> = texts.collect();
        let dropped: u64 = self.counts.values().sum();
        let more = if self.named.len() > MAX_IN_MESSAGE { "; and others" } else { "" };
        format!("partial write: {}{more} dropped={dropped}", texts.join("; "))
    }
}
