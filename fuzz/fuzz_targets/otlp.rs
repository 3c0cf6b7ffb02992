//! Any body of OpenTelemetry's metrics, in both encodings: readings that are accepted again as our own JSON, or one line
//! that says what is wrong; never a panic.

#![no_main]

use garenne_gateway::otlp::OtlpEncoding;
use garenne_protocol::sensor::{Limits, Reading, Timestamp, readings_from};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1000;

fuzz_target!(|input: (bool, &[u8])| {
    let (is_json, body) = input;
    let encoding = if is_json { OtlpEncoding::Json } else { OtlpEncoding::Protobuf };
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let limits = Limits { records: MOST, ..Limits::default() };
    match encoding.records(body, now, &limits) {
        Ok((records, _)) => {
            assert!(records.len() <= MOST);
            let readings: Vec<&Reading> = records.iter().map(|record| &record.reading).collect();
            if readings.is_empty() {
                return;
            }
            let written = serde_json::to_vec(&readings).expect("readings are JSON");
            let again = readings_from("application/json", &written, now)
                .expect("a worker takes what the gateway took");
            assert!(again.iter().map(|record| &record.reading).eq(readings));
        }
        Err(refused) => assert!(!refused.to_string().contains('\n')),
    }
});
