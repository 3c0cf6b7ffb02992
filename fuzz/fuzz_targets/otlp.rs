//! Any body of OpenTelemetry's metrics, in both encodings: readings that are accepted again as our own JSON, or one line
//! that says what is wrong; never a panic.

#![no_main]

mod round_trip;

use garenne_gateway::otlp::OtlpEncoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &[u8])| {
    let (is_json, body) = input;
    let encoding = if is_json { OtlpEncoding::Json } else { OtlpEncoding::Protobuf };
    round_trip::check(|now, limits| encoding.records(body, now, limits).map(|(records, _)| records));
});
