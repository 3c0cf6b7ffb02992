//! Any InfluxDB line protocol body: readings that are accepted again as our own JSON, or one line that
//! says what is wrong; never a panic.

#![no_main]

mod round_trip;

use garenne_gateway::influx::{Precision, line_readings, lines_of};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let words = ["ns", "us", "ms", "s", "m", "h"];
    let precision = Precision::parse(Some(words[usize::from(choice) % words.len()])).expect("a known word");
    round_trip::check(|now, limits| {
        let (mut records, mut body) = (Vec::new(), body.to_vec());
        for (number, line) in lines_of(&mut body) {
            let readings = line.and_then(|line| line_readings(line, precision, now, limits));
            let readings = readings.map_err(|error| error.in_record(number as usize))?;
            let room = limits.records - records.len();
            records.extend(readings.records.into_iter().take(room));
        }
        Ok::<_, garenne_protocol::sensor::BadRecord>(records)
    });
});
