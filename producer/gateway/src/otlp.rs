//! Metrics of OpenTelemetry (OTLP over HTTP) as readings.

mod measure;
mod message;
mod points;
mod repair;
mod response;
mod scalar;
mod unit;

use garenne_protocol::sensor::{Limits, Record, Timestamp, lenient};
use prost::Message;

use crate::refusal::{Refusal, short};
use message::ExportRequest;
pub use points::Rejected;
pub(super) use response::{exported, status};

/// The encoding of a request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpEncoding {
    /// `application/x-protobuf`.
    Protobuf,
    /// `application/json`.
    Json,
}

impl OtlpEncoding {
    /// The encoding that a content type names.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        let media = content_type.split(';').next().unwrap_or_default().trim();
        [Self::Protobuf, Self::Json].into_iter().find(|known| media.eq_ignore_ascii_case(known.media_type()))
    }

    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }

    /// The memory that decoding a body and converting its points need, in units of
    /// [`RECORD`](crate::payload::RECORD).
    pub(super) fn weight(self) -> fn(&[u8]) -> usize {
        match self {
            Self::Protobuf => measure::protobuf_weight,
            Self::Json => measure::json_weight,
        }
    }

    /// The records of a body, and the data points that cannot be readings.
    pub fn records(
        self,
        body: &[u8],
        now: Timestamp,
        limits: &Limits,
    ) -> Result<(Vec<Record>, Rejected), Refusal> {
        let request = match self {
            Self::Protobuf => {
                let size = measure::protobuf(body).map_err(not_otlp)?;
                if size.points > limits.records {
                    return Err(Refusal::too_many("data points", limits.records));
                }
                protobuf(body)?
            }
            Self::Json => json(body)?,
        };
        if request.number_points() > limits.records {
            return Err(Refusal::too_many("data points", limits.records));
        }
        Ok(points::records(request, now, limits))
    }
}

/// Parses JSON, and once more after a repair if it is none, so that a bare `NaN` costs only its data point.
fn json(body: &[u8]) -> Result<ExportRequest, Refusal> {
    serde_json::from_slice(body).or_else(|error| {
        let mut repaired = body.to_vec();
        lenient::repair(&mut repaired);
        serde_json::from_slice(&repaired).map_err(|_| not_otlp(error))
    })
}

/// Decodes Protobuf, and once more after a repair if that fails, so that a text which is not UTF-8 costs only its data points.
fn protobuf(body: &[u8]) -> Result<ExportRequest, Refusal> {
    ExportRequest::decode(body).or_else(|error| {
        let mut repaired = body.to_vec();
        repair::mark_texts(&mut repaired);
        ExportRequest::decode(&*repaired).map_err(|_| not_otlp(error))
    })
}

fn not_otlp(error: impl std::fmt::Display) -> Refusal {
    Refusal::malformed_body(format!("no metrics of OTLP: {}", short(&error)))
}

#[cfg(test)]
mod tests;
