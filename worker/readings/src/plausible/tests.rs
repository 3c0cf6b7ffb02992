use garenne_protocol::sensor::Timestamp;

use super::*;
use crate::Calibration;

fn flags(file: &str, device: &str, metric: &str, raw: f64, unit: &str) -> Vec<Flag> {
    let unit = (!unit.is_empty()).then(|| Unit::parse(unit).unwrap());
    let calibration = Calibration::parse(file).unwrap();
    let calibrated = calibration.calibrate(device, metric, Timestamp::UNIX_EPOCH, raw, unit, None);
    calibrated.quality.into_iter().collect()
}

const IMPOSSIBLE: &[Flag] = &[Flag::Impossible];
const OUT_OF_RANGE: &[Flag] = &[Flag::OutOfRange];

#[test]
fn a_file_names_codes_and_ranges_of_devices_and_metrics() {
    let file = r#"
        [[plausible]]
        metric = "temperature*"
        unit = "Cel"
        none = [85, -127]
        valid = [-55, 125]

        [[plausible]]
        device = "boiler-*"
        metric = "temperature"
        none = []

        [[plausible]]
        device = "lux-*"
        metric = "illuminance"
        shipped = false

        [[plausible]]
        device = "lux-2"
        metric = "*"
        shipped = true
        none = [-1]
    "#;
    for (device, metric, raw, unit, expected) in [
        ("a", "temperature", 85.0, "Cel", IMPOSSIBLE),
        ("a", "temperature_2", 85.0, "Cel", IMPOSSIBLE),
        ("a", "temperature", 185.0, "degF", IMPOSSIBLE),
        ("a", "temperature", 85.0, "", IMPOSSIBLE),
        ("a", "temperature", 85.0625, "Cel", &[]),
        ("a", "temperature", 125.5, "Cel", OUT_OF_RANGE),
        ("a", "temperature", 85.0, "%RH", &[]),
        ("a", "water_temperature", 85.0, "Cel", &[]),
        // The last entry that has the field counts: the range is that of the first one.
        ("boiler-1", "temperature", 85.0, "Cel", &[]),
        ("boiler-1", "temperature", 130.0, "Cel", OUT_OF_RANGE),
        ("boiler-1", "temperature", -127.0, "Cel", &[Flag::OutOfRange, Flag::Impossible]),
        ("a", "illuminance", 65_535.0, "lx", IMPOSSIBLE),
        ("lux-1", "illuminance", 65_535.0, "lx", &[]),
        ("lux-1", "illuminance", -5.0, "lx", &[]),
        ("lux-2", "illuminance", 65_535.0, "lx", IMPOSSIBLE),
        ("lux-2", "illuminance", -1.0, "", IMPOSSIBLE),
    ] {
        assert_eq!(flags(file, device, metric, raw, unit), expected, "{device} {metric} {raw} {unit}");
    }
}

/// A code is compared as it was sent, and the value as it is stored.
#[test]
fn a_corrected_value_is_judged_by_its_number_and_its_code_as_sent() {
    let file =
        |rule: &str| format!("[[calibration]]\nmetric = \"*\"\n{rule}").replace("\"*\"", "\"temperature\"");
    for (rule, raw, unit, expected) in [
        ("offset = 1.0", -127.0, "Cel", IMPOSSIBLE),
        ("offset = 1.0", -128.0, "", IMPOSSIBLE),
        ("gain = 0.01\nunit = \"Cel\"", -127.0, "", &[]),
        ("gain = 0.01\nunit = \"Cel\"", 32_767.0, "", IMPOSSIBLE),
        ("gain = 0.01\nunit = \"Cel\"", -32_768.0, "", IMPOSSIBLE),
        ("gain = 1.02\noffset = 3.0\nunit = \"Cel\"", 65_535.0, "", IMPOSSIBLE),
        ("gain = 0.01\nunit = \"Cel\"", 2_150.0, "", &[]),
        ("valid = [0, 50]", 60.0, "Cel", OUT_OF_RANGE),
    ] {
        assert_eq!(flags(&file(rule), "a", "temperature", raw, unit), expected, "{rule} {raw} {unit}");
    }
    let both =
        "[[calibration]]\nmetric = \"t\"\nvalid = [0, 50]\n[[plausible]]\nmetric = \"t\"\nvalid = [-9, 9]";
    assert_eq!(flags(both, "a", "t", 20.0, "Cel"), OUT_OF_RANGE);
    assert_eq!(flags(both, "a", "t", -1.0, "Cel"), OUT_OF_RANGE);
    assert_eq!(flags(both, "a", "t", 1.0, "Cel"), []);
}

#[test]
fn an_invalid_entry_is_refused_with_its_number_and_field() {
    let error = |rest: &str| Calibration::parse(&format!("[[plausible]]\n{rest}\n")).unwrap_err();
    let of = |message: &str| format!("plausible 1 (device \"*\", metric \"t\"): {message}");
    for (rest, message) in [
        ("metric = \"t\"", of("expected none, valid or shipped")),
        ("metric = \"t\"\nnone = [inf]", of("none: inf is not a finite number")),
        ("metric = \"t\"\nvalid = [2, 1]", of("valid: [2, 1] is not a range; expected [low, high]")),
        (
            "metric = \"a*b\"\nnone = [1]",
            "plausible 1 (device \"*\", metric \"a*b\"): metric: \"a*b\"; expected a name, or a prefix and \"*\" at its end"
                .to_owned(),
        ),
        ("none = [1]", "line 1: missing field `metric`".to_owned()),
    ] {
        assert_eq!(error(rest), message, "{rest}");
    }
    let many = format!("metric = \"t\"\nnone = [{}]", "1,".repeat(101));
    assert_eq!(error(&many), of("none: 101 numbers; at most 100"));
    let entries = "[[plausible]]\nmetric = \"t\"\nnone = [1]\n".repeat(1_001);
    assert_eq!(Calibration::parse(&entries).unwrap_err(), "plausible: 1001 entries; at most 1000");
}
