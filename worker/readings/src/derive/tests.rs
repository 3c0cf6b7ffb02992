use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct References {
    columns: Vec<String>,
    rows: Vec<[Option<f64>; 5]>,
}

#[test]
fn formulas_match_the_references() {
    let text = include_str!("../../tests/references/derived.json");
    let references: References = serde_json::from_str(text).unwrap();
    let names = ["temperature", "humidity", "dew_point", "absolute_humidity", "heat_index"];
    assert_eq!(references.columns, names);
    assert!(references.rows.len() > 1_500);
    for row in references.rows {
        let [Some(temperature), Some(humidity), ..] = row else {
            panic!("a row without temperature and humidity")
        };
        let ours = [dew_point, absolute_humidity, heat_index].map(|formula| formula(temperature, humidity));
        for ((ours, theirs), name) in ours.iter().zip(&row[2..]).zip(&names[2..]) {
            let context = format!("{name} at {temperature} °C, {humidity} %: {ours:?}, not {theirs:?}");
            match (ours, theirs) {
                (None, None) => {}
                (Some(ours), Some(theirs)) => assert!((ours - theirs).abs() <= 1e-9, "{context}"),
                _ => panic!("{context}"),
            }
        }
    }
}

/// Checks the formulas themselves; the references check their implementation.
#[test]
fn formulas_match_published_tables() {
    // Heat index chart of the National Weather Service, °F.
    for (fahrenheit, humidity, index) in
        [(80.0, 40.0, 80.0), (90.0, 70.0, 106.0), (100.0, 40.0, 109.0), (86.0, 90.0, 105.0)]
    {
        let ours = heat_index((fahrenheit - 32.0) / 1.8, humidity).unwrap() * 1.8 + 32.0;
        assert!((ours - index).abs() <= 0.6, "{fahrenheit} °F, {humidity} %: {ours}");
    }
    assert!((dew_point(25.0, 50.0).unwrap() - 13.9).abs() < 0.05);
    assert!((dew_point(20.0, 100.0).unwrap() - 20.0).abs() < 1e-9);
    assert!((absolute_humidity(20.0, 100.0).unwrap() - 0.0173).abs() < 0.0001);
}
