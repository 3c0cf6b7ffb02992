//! `POST /v1/metrics`: metrics of OpenTelemetry (OTLP over HTTP).

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Response, StatusCode, header, request::Parts},
    response::IntoResponse,
};

use super::{
    api::durability_header,
    request::{ConfirmedRecords, HttpRequest, idempotency_key, text},
    request_trace::RequestTrace,
};
use garenne_publish::READING_KIND;

use crate::{
    auth::Peer,
    context::GatewayContext,
    ingest::{Format, Ingest, Parsed, Stored, now},
    otlp::{self, OtlpEncoding, Rejected},
    payload::{Receipts, RecordCount},
    record_tasks::{RequestProperties, devices, leave_out_foreign},
    refusal::Refusal,
    request::handle,
};

/// Stores the data points of gauges and sums as readings. 200 after the broker has confirmed all of them.
pub(super) async fn metrics(State(gateway): State<Arc<GatewayContext>>, request: Request) -> Response<Body> {
    let encoding = encoding_of(request.headers()).unwrap_or(OtlpEncoding::Json);
    let peer = request.extensions().get::<Peer>().cloned();
    let trace = request.extensions().get::<RequestTrace>().cloned();
    let format = |head: &Parts, properties: &mut RequestProperties| {
        properties.idempotency_key = idempotency_key(head, &properties.caller)?;
        encoding_of(&head.headers)
    };
    let answer = |gateway: &GatewayContext, stored: Result<Stored<Rejected>, Refusal>| match stored {
        Ok((receipts, rejected)) => {
            for (code, count) in &rejected.counts {
                gateway.instruments.rejected("otlp", code, *count);
            }
            if let Some(peer) = peer.filter(|_| !rejected.is_empty()) {
                let trace = trace.and_then(|trace| trace.context());
                gateway.instruments.audit.refused(&peer, "otlp", "rejected-points", trace.as_ref());
            }
            exported(encoding, &receipts, &rejected)
        }
        Err(refusal) => {
            let retry_after = retry_of(&refusal, gateway.limits.retry_after);
            refused(encoding, Refusal { retry_after, ..refusal })
        }
    };
    handle(&gateway, HttpRequest::new(request, format, answer)).await
}

/// Gauges and sums. Data points that cannot be readings are returned.
impl Format for OtlpEncoding {
    type Notes = Rejected;

    fn count(&self, _: &RequestProperties) -> RecordCount {
        RecordCount::Weight(self.weight())
    }

    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<Rejected>, Refusal> {
        let now = now();
        let keys = request.keys(READING_KIND, &body, now);
        let (mut records, mut rejected) = self.records(&body, now, &ingest.records)?;
        drop(body);
        let foreign = leave_out_foreign(&mut records, &request.caller, |reading, refusal| {
            rejected.add(&reading.metric, 1, refusal.code, &refusal.message);
        });
        match foreign {
            Some(refusal) if records.is_empty() => Err(refusal),
            _ if request.atomic && !rejected.is_empty() => Err(Refusal::rejected_points(rejected.message())),
            _ if records.is_empty() => Ok(Parsed::tasks(Vec::new(), 0, rejected)),
            _ => {
                let kind = ingest.reading_kind()?;
                request.caller.check_records(kind.as_str(), devices(&records))?;
                Ok(Parsed { keys, ..Parsed::readings(kind, records, rejected) })
            }
        }
    }
}

fn encoding_of(headers: &HeaderMap) -> Result<OtlpEncoding, Refusal> {
    let content_type = text(headers, "content-type")?.unwrap_or_default();
    OtlpEncoding::of(content_type).ok_or_else(|| Refusal::media_type(content_type, "application/x-protobuf"))
}

fn exported(encoding: OtlpEncoding, receipts: &Receipts, rejected: &Rejected) -> Response<Body> {
    let records = Extension(ConfirmedRecords(receipts.ids.len()));
    let media_type = [(header::CONTENT_TYPE, encoding.media_type())];
    let body = otlp::exported(encoding, rejected);
    (StatusCode::OK, records, media_type, durability_header(receipts.durability), body).into_response()
}

/// A body that was too slow may be sent again, so that exporters keep it.
fn retry_of(refusal: &Refusal, retry_after: std::time::Duration) -> Option<std::time::Duration> {
    match refusal.status {
        StatusCode::REQUEST_TIMEOUT => Some(retry_after),
        _ => refusal.retry_after,
    }
}

fn refused(encoding: OtlpEncoding, refusal: Refusal) -> Response<Body> {
    let (status, body) = otlp::status(encoding, &refusal);
    refusal.response(status, encoding.media_type(), body)
}
