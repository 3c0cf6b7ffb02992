use super::*;

fn unit(symbol: &str) -> Option<Unit> {
    Some(Unit::parse(symbol).unwrap())
}

#[test]
fn a_device_rule_overrides_the_rule_for_all_devices() {
    let calibration = Calibration::parse(
        r#"
        [[calibration]]
        metric = "temperature"
        offset = 1.0

        [[calibration]]
        device = "a"
        metric = "temperature"
        unit = "Cel"
        gain = 2.0
        valid = [0, 100]

        [[calibration]]
        device = "a"
        metric = "flow"
        polynomial = [1.0, 0.0, 2.0]
        "#,
    )
    .unwrap();
    let rule = |device, metric| calibration.rule(device, metric);
    assert_eq!(rule("b", "temperature").unwrap().apply(20.0, unit("K")), Ok((21.0, unit("K"))));
    let own = rule("a", "temperature").unwrap();
    assert_eq!(own.apply(50.0, unit("degF")), Ok((20.0, unit("Cel"))));
    assert_eq!(own.apply(10.0, None), Ok((20.0, unit("Cel"))));
    assert_eq!(own.apply(10.0, unit("%RH")), Err(Flag::NotCalibrated));
    assert_eq!(own.apply(1e308, unit("Cel")), Err(Flag::NotCalibrated));
    assert!(own.is_valid(100.0) && !own.is_valid(100.1) && !own.is_valid(-1.0));
    assert_eq!(rule("a", "flow").unwrap().apply(3.0, None), Ok((19.0, None)));
    assert_eq!(rule("b", "flow"), None);
}

#[test]
fn errors_name_the_rule_and_the_value() {
    let rule = |rest: &str| format!("[[calibration]]\ndevice = \"a\"\nmetric = \"t\"\n{rest}\n");
    let of = |message: &str| format!("rule 1 (device \"a\", metric \"t\"): {message}");
    for (text, message) in [
        (rule("gain = nan"), of("gain: NaN is not a finite number")),
        (rule("offset = inf"), of("offset: inf is not a finite number")),
        (rule("unit = \"celsius\""), of("unit: \"celsius\" is not a SenML unit; the nearest is \"Cel\" (degrees Celsius)")),
        (rule("valid = [5.0, 1.0]"), of("valid: [5, 1] is not a range; expected [low, high]")),
        (rule("polynomial = []"), of("polynomial: 0 coefficients; expected 1 to 10")),
        (rule("polynomial = [1.0]\ngain = 2.0"), of("polynomial: not allowed with gain or offset")),
        (rule("gian = 2.0"), "line 4: unknown field `gian`, expected one of `device`, `metric`, `unit`, `gain`, `offset`, `polynomial`, `valid`".into()),
        (rule("gain = \"2\""), "line 4: invalid type: string \"2\", expected f64".into()),
        (rule("") + &rule(""), "rule 2 (device \"a\", metric \"t\"): duplicate rule".into()),
        ("[[calibration]]\ndevice = \"a\"\n".into(), "line 1: missing field `metric`".into()),
    ] {
        assert_eq!(Calibration::parse(&text).unwrap_err(), message, "{text}");
    }
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.toml");
    let error = Calibration::load(&path).unwrap_err();
    assert_eq!(error, format!("calibration file {}: No such file or directory (os error 2)", path.display()));
    std::fs::write(&path, "[[calibration]]\nmetric = 5\n").unwrap();
    let error = Calibration::load(&path).unwrap_err();
    assert!(error.ends_with("none.toml: line 2: invalid type: integer `5`, expected a string"), "{error}");
    std::fs::write(&path, "").unwrap();
    assert_eq!(Calibration::load(&path).unwrap(), Calibration::default());
}
