//! Any pack: an answer, never a panic; and a resolved pack resolves to itself.

#![no_main]

use garenne_protocol::sensor::{Timestamp, resolve_pack, senml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let Ok(resolved) = resolve_pack(body, now) else { return };
    // Times before 1978-07-04 cannot be written in SenML: they would be relative ones.
    if resolved.iter().any(|record| record.time.as_unix_seconds() < senml::RELATIVE_BELOW) {
        return;
    }
    let written = serde_json::to_vec(&resolved).expect("records are JSON");
    assert_eq!(resolve_pack(&written, now).expect("a resolved pack is a pack").len(), resolved.len());
});
