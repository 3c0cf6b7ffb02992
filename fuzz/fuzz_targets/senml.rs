//! Any pack: an answer, never a panic. A resolved pack resolves to itself, and gives the readings of the original.

#![no_main]

use garenne_protocol::sensor::{Reading, Timestamp, readings_from, resolve_pack, senml};
use libfuzzer_sys::fuzz_target;

/// Unix seconds, 2^33, below which rounding a double to microseconds gives the time it was made from.
const EXACT_BELOW: f64 = 8_589_934_592.0;

fuzz_target!(|body: &[u8]| {
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let Ok(resolved) = resolve_pack(body, now) else { return };
    // Times before 1978-07-04 cannot be written in SenML: they would be relative ones.
    let exact = senml::RELATIVE_BELOW..EXACT_BELOW;
    if !resolved.iter().all(|record| exact.contains(&record.time.as_unix_seconds())) {
        return;
    }
    let written = serde_json::to_vec(&resolved).expect("records are JSON");
    let mut again = resolve_pack(&written, now).expect("a resolved pack is a pack");
    for (record, before) in again.iter_mut().zip(&resolved) {
        // A resolved time is absolute.
        assert!(!record.relative);
        record.relative = before.relative;
    }
    assert_eq!(again, resolved);

    // Neither pack gives readings if a record has no number, or a unit or a name that readings cannot have.
    let readings = |pack: &[u8]| -> Option<Vec<Reading>> {
        let records = readings_from("application/senml+json", pack, now).ok()?;
        Some(records.into_iter().map(|record| record.reading).collect())
    };
    let mut original = readings(body);
    // Only a resolved pack is in the order of its times.
    original.iter_mut().for_each(|readings| readings.sort_by_key(|reading| reading.time));
    assert_eq!(readings(&written), original);
});
