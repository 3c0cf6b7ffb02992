use super::*;

/// A reading of a test: the second, the value, the unit, and whether it is usable.
type Given = (i64, f64, Option<&'static str>, bool);

fn window(flagged: FlaggedReadings, readings: &[Given]) -> StoredWindow {
    let mut window = StoredWindow::new(flagged);
    for (second, value, unit, is_usable) in readings {
        let time = Timestamp::from_micros(second * 1_000_000).unwrap();
        window.push(time, *value, *unit, *is_usable).unwrap();
    }
    window
}

fn unit(symbol: &str) -> Option<Unit> {
    Some(Unit::parse(symbol).unwrap())
}

/// The values, the unit, and the number of readings left out.
type Converted = (Vec<Option<f64>>, Option<Unit>, usize);

fn convert(readings: &[Given], unit: Option<Unit>) -> Result<Converted, String> {
    let converted = window(FlaggedReadings::Exclude, readings).convert(unit)?;
    assert_eq!(converted.series.times.len(), readings.len());
    Ok((converted.series.values, converted.unit, converted.left_out))
}

#[test]
fn readings_are_converted_to_the_unit_of_the_request_or_of_the_newest() {
    let mixed: [Given; 3] =
        [(0, 68.0, Some("degF"), true), (1, 20.0, Some("Cel"), true), (2, 294.15, Some("K"), true)];
    let (values, own, _) = convert(&mixed, unit("Cel")).unwrap();
    assert_eq!((values, own), (vec![Some(20.0), Some(20.0), Some(21.0)], unit("Cel")));
    let (values, own, _) = convert(&mixed, None).unwrap();
    assert_eq!((values, own), (vec![Some(293.15), Some(293.15), Some(294.15)], unit("K")));
    // The newest one that is used.
    let flagged = [(0, 68.0, Some("degF"), true), (1, 20.0, Some("Cel"), true), (2, -1.0, Some("K"), false)];
    assert_eq!(convert(&flagged, None).unwrap(), (vec![Some(20.0), Some(20.0), None], unit("Cel"), 1));
}

#[test]
fn readings_of_another_quantity_are_refused_with_their_number() {
    let mixed: [Given; 4] = [
        (0, 20.0, Some("Cel"), true),
        (1, 50.0, Some("%RH"), true),
        (2, 51.0, Some("%RH"), true),
        (3, 20.0, Some("Cel"), true),
    ];
    assert_eq!(
        convert(&mixed, None).unwrap_err(),
        "unit: 2 of 4 readings cannot be converted to Cel (degrees Celsius); the first of them, of \
         1970-01-01T00:00:01Z, is in %RH (percentage (relative humidity))"
    );
    assert!(
        convert(&mixed, unit("V"))
            .unwrap_err()
            .starts_with("unit: 4 of 4 readings cannot be converted to V (volt)")
    );
    // One that is left out does not matter.
    let flagged = [(0, 20.0, Some("Cel"), true), (1, 50.0, Some("%RH"), false)];
    assert_eq!(convert(&flagged, None).unwrap(), (vec![Some(20.0), None], unit("Cel"), 1));
    let error = StoredWindow::new(FlaggedReadings::Exclude)
        .push(Timestamp::UNIX_EPOCH, 1.0, Some("celsius"), true)
        .unwrap_err();
    assert_eq!(
        error,
        "unit of the stored reading of 1970-01-01T00:00:00Z: \"celsius\" is not a SenML unit; the nearest is \"Cel\" \
         (degrees Celsius)"
    );
}

#[test]
fn readings_without_a_unit_are_only_taken_to_be_in_that_of_the_request() {
    let none: [Given; 2] = [(0, 1.0, None, true), (1, 2.0, None, true)];
    assert_eq!(convert(&none, None).unwrap(), (vec![Some(1.0), Some(2.0)], None, 0));
    assert_eq!(convert(&none, unit("bar")).unwrap(), (vec![Some(1.0), Some(2.0)], unit("bar"), 0));
    let older = [(0, 1.0, None, true), (1, 2.0, Some("bar"), true)];
    assert_eq!(convert(&older, unit("Pa")).unwrap(), (vec![Some(1.0), Some(200_000.0)], unit("Pa"), 0));
    assert_eq!(
        convert(&older, None).unwrap_err(),
        "unit: 1 of 2 readings cannot be converted to bar (bar); the first of them, of 1970-01-01T00:00:00Z, has no unit"
    );
    let newer = [(0, 1.0, Some("bar"), true), (1, 2.0, None, true)];
    assert_eq!(
        convert(&newer, None).unwrap_err(),
        "unit: 1 of 2 readings have a unit, but the newest one has none; the first of them, of 1970-01-01T00:00:00Z, is in \
         bar (bar)"
    );
}

#[test]
fn flagged_readings_are_left_out_or_included() {
    let given = [(0, 1.0, Some("V"), true), (1, 99.0, Some("V"), false), (2, 3.0, Some("V"), true)];
    assert_eq!(convert(&given, None).unwrap(), (vec![Some(1.0), None, Some(3.0)], unit("V"), 1));
    let all = window(FlaggedReadings::Include, &given).convert(None).unwrap();
    assert_eq!((all.series.values, all.left_out), (vec![Some(1.0), Some(99.0), Some(3.0)], 0));
    let bad = [(0, 1.0, Some("V"), false), (1, 2.0, None, false)];
    assert_eq!(
        convert(&bad, None).unwrap_err(),
        "all 2 readings of the window are flagged; \"flagged\": \"include\" includes them"
    );
    assert_eq!(convert(&[], None).unwrap(), (vec![], None, 0));
}

#[test]
fn a_window_with_too_many_readings_is_refused_by_name() {
    let query = WindowQuery {
        device: "boiler-1".to_owned(),
        metric: "temperature".to_owned(),
        times: Timestamp::UNIX_EPOCH..Timestamp::from_micros(1_000_000).unwrap(),
        limit: 10,
        flagged: FlaggedReadings::Exclude,
    };
    assert_eq!(
        query.too_many().message(),
        "more than 10 readings of boiler-1 temperature are stored from 1970-01-01T00:00:00Z to 1970-01-01T00:00:01Z, \
         flagged ones included; at most 10 are allowed"
    );
}
