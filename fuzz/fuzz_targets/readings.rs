//! Any body, under any of the content types: an answer, never a panic; and what is accepted can be
//! written and is accepted again, unchanged.

#![no_main]

use garenne_protocol::sensor::{
    Limits, Reading, Timestamp,
    parse::{Form, sift_readings},
    readings_from,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let types = ["application/json", "application/senml+json", "application/x-ndjson"];
    let now = Timestamp::from_micros(1_795_132_800_000_000).expect("a time of this century");
    let media = types[usize::from(choice) % types.len()];
    let form = Form::of(media).expect("a known type");
    let sifted = sift_readings(form, &mut body.to_vec(), now, &Limits::default());
    match sifted
        .map(|sifted| sifted.slots.into_iter().flatten().map(|record| record.reading).collect::<Vec<_>>())
    {
        Ok(readings) if !readings.is_empty() => {
            let written = serde_json::to_vec(&readings).expect("readings are JSON");
            let again = readings_from("application/json", &written, now).expect("what was kept is accepted");
            assert!(again.into_iter().map(|record| record.reading).eq(readings));
        }
        Ok(_) => {}
        Err(refused) => assert!(!refused.to_string().contains('\n')),
    }
    match readings_from(media, body, now) {
        Ok(records) => {
            let readings: Vec<&Reading> = records.iter().map(|record| &record.reading).collect();
            let written = serde_json::to_vec(&readings).expect("readings are JSON");
            let again =
                readings_from("application/json", &written, now).expect("what was accepted is accepted");
            assert!(again.iter().map(|record| &record.reading).eq(readings));
        }
        Err(refused) => assert!(!refused.to_string().contains('\n')),
    }
});
