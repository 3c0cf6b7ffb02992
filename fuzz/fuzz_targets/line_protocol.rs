//! Any InfluxDB line protocol body: readings that are accepted again as our own JSON, or one line that
//! says what is wrong; never a panic.

#![no_main]

mod round_trip;

use garenne_gateway::influx::{Precision, records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let words = ["ns", "us", "ms", "s", "m", "h"];
    let precision = Precision::parse(Some(words[usize::from(choice) % words.len()])).expect("a known word");
    round_trip::check(|now, limits| records(body, precision, now, limits));
});
