//! Properties of random input.

use proptest::prelude::*;

use super::*;

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        prop_oneof!["[a-zA-Z0-9:/_.-]{0,12}", "\\PC{0,8}", Just("Cel".to_owned()), Just("%RH".to_owned())]
            .prop_map(Into::into),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Into::into))
}

fn record_like() -> impl Strategy<Value = serde_json::Value> {
    let label = prop::sample::select(vec![
        "device", "metric", "value", "unit", "time", "id", "bn", "bt", "bu", "bv", "bs", "bver", "n", "u",
        "v", "vs", "vb", "vd", "s", "t", "ut", "x", "y_",
    ]);
    prop::collection::hash_map(label, json_value(), 0..7)
        .prop_map(|map| map.into_iter().map(|(label, value)| (label.to_owned(), value)).collect())
}

fn senml_record() -> impl Strategy<Value = serde_json::Value> {
    let text = |texts: &'static [&'static str]| prop::sample::select(texts).prop_map(serde_json::Value::from);
    let number = || (-1e6..1e6).prop_map(|value: f64| serde_json::Value::from(value));
    let time = || prop_oneof![(-1e4..1e4), (3e8..4e9)].prop_map(|value: f64| serde_json::Value::from(value));
    let field = prop_oneof![
        4 => (Just("v"), number()),
        2 => (Just("n"), text(&["t", ":hum", "/a/b", "2001:db8::1", ""])),
        1 => (Just("bn"), text(&["dev", "dev:", "urn:dev:ow:10e2073a01080063"])),
        1 => (prop::sample::select(vec!["u", "bu"]), text(&["Cel", "/", "%RH", "degF"])),
        1 => (prop::sample::select(vec!["t", "bt"]), time()),
        1 => (prop::sample::select(vec!["bv", "bs", "s", "ut"]), number()),
        1 => (Just("vb"), any::<bool>().prop_map(Into::into)),
    ];
    prop::collection::vec(field, 1..6)
        .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_parsed_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for content_type in ["", "application/senml+json", "application/x-ndjson"] {
            let _ = readings_from(content_type, &body, now());
        }
    }

    #[test]
    fn any_records_give_valid_readings_or_a_one_line_error(records in prop::collection::vec(record_like(), 0..4)) {
        let body = serde_json::to_vec(&records).unwrap();
        for content_type in ["", "application/senml+json"] {
            match readings_from(content_type, &body, now()) {
                Ok(records) => {
                    let readings: Vec<_> = records.into_iter().map(|record| record.reading).collect();
                    for reading in &readings {
                        prop_assert!(reading.value.is_finite());
                        prop_assert!((1..=128).contains(&reading.device.len()));
                        prop_assert!((1..=128).contains(&reading.metric.len()));
                    }
                    let written = serde_json::to_vec(&readings).unwrap();
                    let again = readings_from("", &written, now()).unwrap();
                    prop_assert!(again.into_iter().map(|record| record.reading).eq(readings));
                }
                Err(error) => {
                    let text = error.to_string();
                    prop_assert!(!text.contains(['\n', '\r']) && text.len() < 400, "{}", text);
                    prop_assert!(error.index <= records.len());
                }
            }
        }
    }

    #[test]
    fn a_resolved_pack_gives_the_readings_of_the_original(
        mut records in prop::collection::vec(senml_record(), 1..5),
    ) {
        records[0]["bn"] = "dev:a".into();
        let readings = |pack: &Json| {
            let records = readings_from("application/senml+json", pack.to_string().as_bytes(), now()).ok()?;
            // Sums are behind the other records.
            let mut readings: Vec<_> = records.into_iter().map(|record| record.reading).collect();
            readings.sort_by_cached_key(|reading| format!("{} {reading:?}", reading.time));
            Some(readings)
        };
        if let Ok(resolved) = resolved(&records, now()) {
            let original = readings(&Json::Array(records));
            prop_assert_eq!(readings(&resolved), original);
        }
    }

    #[test]
    fn a_written_reading_reads_back_equal(
        device in "[a-z0-9:./-]{1,30}", metric in "[a-z0-9_]{1,30}", value in prop::num::f64::NORMAL,
        micros in 0..4_000_000_000_000_000_i64, unit in prop::sample::select(Unit::all().collect::<Vec<_>>()),
    ) {
        let reading = Reading {
            device: device.as_str().into(),
            metric: metric.as_str().into(),
            value,
            unit: Some(unit).filter(|unit| unit.meant_for(&metric).is_none()),
            counter: None,
            time: Timestamp::from_micros(micros).unwrap(),
        };
        let body = serde_json::to_vec(&[&reading]).unwrap();
        let read = readings_from("application/json", &body, now()).unwrap();
        prop_assert_eq!(&read[0].reading, &reading);
        prop_assert!(!read[0].time_assumed);
    }
}
