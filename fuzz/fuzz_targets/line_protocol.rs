//! Any InfluxDB line protocol body: readings that are accepted again as our own JSON, or one line that
//! says what is wrong; never a panic.

#![no_main]

use garenne_protocol::sensor::{Limits, Reading, Timestamp, readings_from};
use garenne_gateway::influx::{Precision, records};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1000;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let words = ["ns", "us", "ms", "s", "m", "h"];
    let precision = Precision::parse(Some(words[usize::from(choice) % words.len()])).expect("a known word");
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let limits = Limits { records: MOST, ..Limits::default() };
    match records(body, precision, now, &limits) {
        Ok(records) => {
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
