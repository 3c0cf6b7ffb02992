use super::*;
use proptest::prelude::*;

#[test]
fn unix_seconds_and_text_give_equal_timestamps() {
    let number = Timestamp::from_unix_seconds(1_276_020_076.001).unwrap();
    let text = Timestamp::parse("2010-06-08T18:01:16.001Z").unwrap();
    assert_eq!(number, text);
    assert_eq!(number.as_micros(), 1_276_020_076_001_000);
    assert_eq!(text.to_string(), "2010-06-08T18:01:16.001Z");
    assert_eq!(Timestamp::parse("2010-06-08T20:01:16.0010004+02:00").unwrap(), number);
}

#[test]
fn rfc_3339_edge_cases() {
    for (text, expected) in [
        ("0000-01-01T00:00:00Z", Ok("0000-01-01T00:00:00Z")),
        ("9999-12-31T23:59:59.999999Z", Ok("9999-12-31T23:59:59.999999Z")),
        ("9999-12-31T23:59:59.9999995Z", Err(BadTimestamp::Range)),
        ("0000-01-01T00:00:00+00:01", Err(BadTimestamp::Range)),
        ("2024-02-29t12:00:00z", Ok("2024-02-29T12:00:00Z")),
        ("2023-02-29T12:00:00Z", Err(BadTimestamp::Form)),
        ("1900-02-29T12:00:00Z", Err(BadTimestamp::Form)),
        ("2016-12-31T23:59:60Z", Ok("2016-12-31T23:59:59Z")),
        ("2017-01-01T01:59:60.5+02:00", Ok("2016-12-31T23:59:59.5Z")),
        ("2016-12-31 23:59:60", Err(BadTimestamp::NoOffset)),
        ("9999-12-31T23:59:60.25Z", Ok("9999-12-31T23:59:59.25Z")),
        ("2026-11-20T07:30:60Z", Err(BadTimestamp::Form)),
        ("2026-11-20T07:30:00.123456789123456Z", Ok("2026-11-20T07:30:00.123457Z")),
        ("2026-11-20T07:30:00+24:00", Err(BadTimestamp::Form)),
        ("2026-11-20T07:30:00+02:60", Err(BadTimestamp::Form)),
        ("2026-11-20x07:30:00Z", Err(BadTimestamp::Form)),
        ("2026-11-20 07:30:00-05:30", Ok("2026-11-20T13:00:00Z")),
        ("2026-11-20T07:30:00", Err(BadTimestamp::NoOffset)),
        ("2026-11-20T24:00:00Z", Err(BadTimestamp::Form)),
        ("2026-11-20T07:30:00.Z", Err(BadTimestamp::Form)),
        ("2026-11-20T07:30:00+0200", Err(BadTimestamp::Form)),
        ("2026-11-20", Err(BadTimestamp::Form)),
        ("yesterday", Err(BadTimestamp::Form)),
        ("", Err(BadTimestamp::Form)),
    ] {
        let got = Timestamp::parse(text).map(|at| at.to_string());
        assert_eq!(got.as_deref().map_err(|error| *error), expected, "{text}");
    }
}

#[test]
fn milliseconds_are_refused_with_a_hint() {
    let error = Timestamp::from_unix_seconds(1_763_600_000_000.0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "outside the years 0000 to 9999; a number is Unix seconds, not milliseconds"
    );
    assert_eq!(Timestamp::from_unix_seconds(f64::NAN), Err(BadTimestamp::NotFinite));
    assert_eq!(Timestamp::from_unix_seconds(f64::MIN), Err(BadTimestamp::Range));
}

proptest! {
    #[test]
    fn agrees_with_the_time_crate(micros in MIN..=MAX) {
        let ours = Timestamp::from_micros(micros).unwrap();
        let theirs = OffsetDateTime::from(ours);
        prop_assert_eq!(ours.to_string(), theirs.format(&Rfc3339).unwrap());
        prop_assert_eq!(Timestamp::parse(&ours.to_string()), Ok(ours));
        prop_assert_eq!(Timestamp::from(theirs), ours);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in "\\PC{0,40}", shaped in "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,12})?(Z|[+-][0-9]{2}:[0-9]{2})?") {
        let _ = Timestamp::parse(&text);
        let (ours, theirs) = (Timestamp::parse(&shaped), OffsetDateTime::parse(&shaped, &Rfc3339));
        // Everything that the time crate accepts is accepted, except times whose UTC year has more than 4 digits.
        if let Ok(theirs) = theirs && (0..=9998).contains(&theirs.to_offset(time::UtcOffset::UTC).year()) {
            prop_assert!(ours.is_ok(), "{}", shaped);
        }
    }

    #[test]
    fn unix_seconds_round_trip(micros in -4_000_000_000_000_000_i64..4_000_000_000_000_000) {
        let at = Timestamp::from_micros(micros).unwrap();
        prop_assert_eq!(Timestamp::from_unix_seconds(at.as_unix_seconds()), Ok(at));
    }
}
