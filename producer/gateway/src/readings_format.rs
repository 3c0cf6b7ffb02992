//! The formats of bodies and lines with readings, besides InfluxDB's lines and OTLP.

use std::sync::Arc;

use garenne_map::{Map, Source};
use garenne_protocol::sensor::{
    Limits, Sifted, Timestamp,
    parse::{Form, sift_readings},
};

use prometheus::IntCounter;

use crate::{payload::RecordCount, refusal::Refusal, routes::READING};

/// The format of a body with readings.
pub(super) enum ReadingsFormat {
    /// JSON, by content type.
    Json(Form),
    /// A payload of another project, that the rules of a map turn into readings. The path is that of the request.
    Mapped { map: Arc<Map>, path: Arc<str> },
}

impl ReadingsFormat {
    /// How an upper bound of a body's records is found.
    pub(super) const fn count(&self) -> RecordCount {
        match self {
            Self::Json(_) => RecordCount::Weight(json_records),
            // Values of JSON are separated.
            Self::Mapped { .. } => RecordCount::Mark(b','),
        }
    }

    /// What the same body stands for: it gives other readings with another map.
    pub(super) fn content(&self) -> &str {
        if let Self::Mapped { path, .. } = self { path } else { READING }
    }

    /// The records of a body, which is changed if it is no JSON. Adds the values that nobody measured to `unmeasured`.
    ///
    /// # Errors
    /// The body is refused as a whole.
    pub(super) fn sift(
        &self,
        body: &mut [u8],
        now: Timestamp,
        limits: &Limits,
        unmeasured: &IntCounter,
    ) -> Result<Sifted, Refusal> {
        match self {
            Self::Json(form) => Ok(sift_readings(*form, body, now, limits)?),
            Self::Mapped { map, path } => {
                let mapped = map.apply(Source::Path(path), body, now, limits).map_err(Refusal::unmapped)?;
                unmeasured.inc_by(mapped.unmeasured as u64);
                Ok(mapped.sifted())
            }
        }
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
