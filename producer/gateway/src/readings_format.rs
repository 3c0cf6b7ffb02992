//! The formats of bodies and lines with readings, besides InfluxDB's lines and OTLP.

use std::sync::Arc;

use garenne_map::{Map, Source};
use garenne_protocol::sensor::{
    Sifted, Timestamp,
    parse::{Form, sift_readings},
};
use garenne_publish::READING_KIND;

use crate::{
    ingest::{Format, Ingest, Parsed, now},
    left_out::LeftOut,
    payload::RecordCount,
    record_tasks::{RequestProperties, allowed},
    refusal::Refusal,
};

/// The format of a body with readings.
#[derive(Clone)]
pub(super) enum ReadingsFormat {
    /// JSON, by content type.
    Json(Form),
    /// A payload of another project, that the rules of a map turn into readings. The path is that of the request.
    Mapped { map: Arc<Map>, path: Arc<str> },
}

impl ReadingsFormat {
    /// What the same body stands for: it gives other readings with another map.
    fn content(&self) -> &str {
        if let Self::Mapped { path, .. } = self { path } else { READING_KIND }
    }

    /// The records of a body, which is changed if it is no JSON.
    fn sift(&self, body: &mut [u8], now: Timestamp, ingest: &Ingest) -> Result<Sifted, Refusal> {
        let limits = &ingest.records;
        match self {
            Self::Json(form) => Ok(sift_readings(*form, body, now, limits)?),
            Self::Mapped { map, path } => {
                let mapped = map.apply(Source::Path(path), body, now, limits).map_err(Refusal::unmapped)?;
                ingest.unmeasured.inc_by(mapped.unmeasured as u64);
                Ok(mapped.sifted())
            }
        }
    }
}

/// One task per record, in the order of the records. A record that is invalid or that the sender may not send is left out.
/// A body that a map skips has no readings.
impl Format for ReadingsFormat {
    type Notes = LeftOut;

    fn count(&self, _: &RequestProperties) -> RecordCount {
        match self {
            Self::Json(_) => RecordCount::Weight(json_records),
            // Values of JSON are separated.
            Self::Mapped { .. } => RecordCount::Mark(b','),
        }
    }

    fn parse(
        self,
        mut body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<LeftOut>, Refusal> {
        // Before the body is changed.
        let now = now();
        let keys = request.keys(self.content(), &body, now);
        let sifted = self.sift(&mut body, now, ingest)?;
        drop(body);
        if sifted.slots.is_empty() {
            return Ok(Parsed::tasks(Vec::new(), 0, LeftOut::default()));
        }
        let kind = ingest.reading_kind()?;
        let (slots, notes) = allowed(sifted, &kind, request)?;
        let slots = slots.into_iter().enumerate();
        let records: Vec<_> = slots.filter_map(|(position, slot)| Some((position, slot?))).collect();
        Ok(Parsed { keys, ..Parsed::at_positions(kind, records, notes) })
    }
}

/// Every record is an object, and in SenML it may have a sum, which is another record.
fn json_records(body: &[u8]) -> usize {
    let objects = memchr::memchr_iter(b'{', body).count();
    // A field's name may be escaped.
    let has_sums =
        [&b"\"s\""[..], b"\"bs\"", b"\\u"].iter().any(|name| memchr::memmem::find(body, name).is_some());
    if has_sums { objects.saturating_mul(2) } else { objects }
}
