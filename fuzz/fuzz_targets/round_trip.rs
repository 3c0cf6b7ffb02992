//! What a format's parser accepts, a worker accepts again as Garenne's own JSON.

use std::fmt::Display;

use garenne_protocol::sensor::{Limits, Reading, Record, Timestamp, readings_from};

/// Most records of a body.
const MOST: usize = 1000;

/// Reads a body at a fixed time. The readings must be the same after they were written and read again, and an error must
/// be one line.
pub fn check<E: Display>(read: impl FnOnce(Timestamp, &Limits) -> Result<Vec<Record>, E>) {
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let limits = Limits { records: MOST, ..Limits::default() };
    let records = match read(now, &limits) {
        Ok(records) => records,
        Err(refused) => return assert!(!refused.to_string().contains('\n')),
    };
    assert!(records.len() <= MOST);
    let readings: Vec<&Reading> = records.iter().map(|record| &record.reading).collect();
    if readings.is_empty() {
        return;
    }
    let written = serde_json::to_vec(&readings).expect("readings are JSON");
    let again = readings_from("application/json", &written, now).expect("a worker takes what the gateway took");
    assert!(again.iter().map(|record| &record.reading).eq(readings));
}
