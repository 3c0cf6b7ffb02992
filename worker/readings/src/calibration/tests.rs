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
    let rule = |device, metric| calibration.rule(device, metric, Timestamp::UNIX_EPOCH);
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
        (rule("counter = true\noffset = 1"), of("counter: only gain is allowed, without offset or polynomial")),
        (rule("counter = true\nwraps_at = 0"), of("wraps_at: 0; expected a finite number above 0")),
        (rule("max_per_hour = 5"), of("wraps_at and max_per_hour: only allowed with counter = true")),
        (rule("gian = 2.0"), "line 4: unknown field `gian`, expected one of `device`, `metric`, `from`, `until`, `version`, `unit`, `gain`, `offset`, `polynomial`, `valid`, `counter`, `wraps_at`, `max_per_hour`".into()),
        (rule("gain = \"2\""), "line 4: invalid type: string \"2\", expected f64".into()),
        (rule("from = \"2026-03-01\""), of("from: 2026-03-01: not an RFC 3339 date and time such as 2026-11-20T07:30:00Z")),
        (rule("until = 2026-03-01T00:00:00"), of("until: 2026-03-01T00:00:00: no UTC offset; end it with Z or an offset such as +02:00")),
        (rule("from = 5"), of("from: 5: not an RFC 3339 date and time such as 2026-11-20T07:30:00Z")),
        (rule("from = 2026-03-01T00:00:00Z\nuntil = \"2026-03-01T01:00:00+01:00\""), of("until: 2026-03-01T00:00:00Z is not after from (2026-03-01T00:00:00Z)")),
        (rule("version = \"none\""), of("version: \"none\" is stored with readings that no rule applies to")),
        (rule("version = \"\""), of("version: \"\" has 0 bytes; expected 1 to 64, without control characters")),
        ("[[calibration]]\ndevice = \"a-*\"\nmetric = \"t\"".into(), "rule 1 (device \"a-*\", metric \"t\"): a rule takes no patterns: it is for one metric, and for one device or for every device (\"*\")".into()),
        ("[[calibration]]\nmetric = \"*\"".into(), "rule 1 (device \"*\", metric \"*\"): a rule takes no patterns: it is for one metric, and for one device or for every device (\"*\")".into()),
        ("[[calibration]]\ndevice = \"a\"\n".into(), "line 1: missing field `metric`".into()),
    ] {
        assert_eq!(Calibration::parse(&text).unwrap_err(), message, "{text}");
    }
}

#[test]
fn a_counter_is_declared_in_raw_values_and_stored_in_corrected_ones() {
    let rules = "[[calibration]]\nmetric = \"energy\"\nunit = \"Wh\"\ngain = 0.5\ncounter = true\nwraps_at = 65536\nmax_per_hour = 40";
    let calibration = Calibration::parse(rules).unwrap();
    let time = Timestamp::from_micros(0).unwrap();
    let calibrated = |raw| calibration.calibrate("a", "energy", time, raw, Unit::get("kWh"), None);
    let counter = Counter { wraps_at: Some(32_768_000.0), max_per_hour: Some(40.0) };
    assert_eq!((calibrated(2.0).value, calibrated(2.0).counter), (1000.0, Some(counter)));
    assert!(calibrated(2.0).quality.is_empty());
    assert_eq!(calibrated(0.0).quality, [Flag::CounterZero].into());
    assert_eq!(calibration.calibrate("a", "power", time, 0.0, None, None).counter, None);
}

#[test]
fn a_calibration_converts_or_overrules_what_the_sender_says_of_a_counter() {
    let sent = SentCounter { wraps_at: Some(100.0), max_per_hour: Some(4.0), start: None };
    let raw = Counter { wraps_at: Some(100.0), max_per_hour: Some(4.0) };
    for (rule, expected) in [
        ("gain = 1", Some(raw)),
        ("gain = 10", Some(Counter { wraps_at: Some(1000.0), max_per_hour: Some(40.0) })),
        // A restart would not be one at zero.
        ("offset = 1", None),
        ("counter = false", None),
        ("gain = 10\ncounter = true", Some(Counter::default())),
    ] {
        let rules = format!("[[calibration]]\nmetric = \"energy\"\n{rule}");
        let calibration = Calibration::parse(&rules).unwrap();
        let calibrated =
            |raw, sent| calibration.calibrate("a", "energy", Timestamp::UNIX_EPOCH, raw, None, Some(sent));
        assert_eq!(calibrated(5.0, sent).counter, expected, "{rule}");
        assert_eq!(calibrated(0.0, sent).quality.is_empty(), expected.is_none(), "{rule}");
        let started = SentCounter { start: Some(Timestamp::UNIX_EPOCH), ..sent };
        assert!(calibrated(0.0, started).quality.is_empty(), "{rule}");
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

#[test]
fn rules_of_one_metric_must_not_overlap() {
    let rule = |rest: &str| format!("[[calibration]]\ndevice = \"a\"\nmetric = \"t\"\n{rest}\n");
    let (march, april) = ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z");
    let (may, june) = ("2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z");
    let from = |time: &str| format!("from = \"{time}\"");
    let until = |time: &str| format!("until = \"{time}\"");
    let other = "[[calibration]]\nmetric = \"t\"\n";
    for (one, two, overlap) in [
        (String::new(), String::new(), "at all times".to_owned()),
        (from(april), String::new(), format!("from {april} on")),
        (until(may), until(april), format!("until {april}")),
        (
            from(march) + "\n" + &until(may),
            from(april) + "\n" + &until(june),
            format!("from {april} until {may}"),
        ),
    ] {
        let expected = format!("rule 3 (device \"a\", metric \"t\"): overlaps rule 1 {overlap}");
        assert_eq!(Calibration::parse(&(rule(&one) + other + &rule(&two))).unwrap_err(), expected);
    }
    let twice = rule("until = 2026-04-01T00:00:00Z\nversion = \"v1\"");
    let expected = "rule 2 (device \"a\", metric \"t\"): version \"v1\" is that of rule 1, which differs";
    let edited = twice.clone() + &rule("from = 2026-04-01T00:00:00Z\nversion = \"v1\"\ngain = 2.0");
    assert_eq!(Calibration::parse(&edited).unwrap_err(), expected);
    Calibration::parse(&(twice + &rule("from = 2026-04-01T00:00:00Z\nversion = \"v1\""))).unwrap();
}

/// Half-open periods, chosen by the time of the reading. Between them a value is stored as sent, also if there is a
/// rule for every device.
#[test]
fn the_time_of_a_reading_chooses_its_rule() {
    let calibration = Calibration::parse(
        r#"
        [[calibration]]
        metric = "t"
        offset = 100.0

        [[calibration]]
        device = "a"
        metric = "t"
        until = 2026-03-01T00:00:00Z
        version = "first"
        offset = 1.0

        [[calibration]]
        device = "a"
        metric = "t"
        from = "2026-04-01T02:00:00+02:00"
        until = "2026-05-01T00:00:00Z"
        offset = 2.0
        "#,
    )
    .unwrap();
    let at = |device: &str, time: &str| {
        let time = Timestamp::parse(time).unwrap();
        let calibrated = calibration.calibrate(device, "t", time, 20.0, unit("Cel"), None);
        (calibrated.value, calibrated.version.as_deref().map(str::to_owned))
    };
    let first = (21.0, Some("first".to_owned()));
    let second = (22.0, Some("7744f131".to_owned()));
    assert_eq!(at("a", "1999-01-01T00:00:00Z"), first);
    assert_eq!(at("a", "2026-02-28T23:59:59.999999Z"), first);
    assert_eq!(at("a", "2026-03-01T00:00:00Z"), (20.0, None));
    assert_eq!(at("a", "2026-03-31T23:59:59.999999Z"), (20.0, None));
    assert_eq!(at("a", "2026-04-01T00:00:00Z"), second);
    assert_eq!(at("a", "2026-04-30T23:59:59.999999Z"), second);
    assert_eq!(at("a", "2026-05-01T00:00:00Z"), (20.0, None));
    assert_eq!(at("b", "2026-03-15T00:00:00Z").0, 120.0);
}

/// Stored readings name the version, so it must not change with a release.
#[test]
fn a_version_without_a_name_is_a_hash_of_what_corrects_the_value() {
    let version = |rule: &str| {
        let calibration = Calibration::parse(&format!("[[calibration]]\nmetric = \"t\"\n{rule}")).unwrap();
        calibration.rule("a", "t", Timestamp::UNIX_EPOCH).unwrap().version().to_owned()
    };
    let base = "unit = \"Cel\"\ngain = 1.02\noffset = -0.3\nvalid = [-40, 85]\n";
    assert_eq!(version(base), "7ff55d1b");
    let same =
        "unit = \"Cel\"\npolynomial = [-0.3, 1.02]\nvalid = [-40.0, 85.0]\nuntil = 2027-01-01T00:00:00Z";
    assert_eq!(version(same), version(base));
    assert_eq!(version("offset = -0.0"), version("gain = 1.0"));
    let other = ["", "unit = \"K\"", "gain = 1.02", "polynomial = [-0.3, 1.02, 0.0]", "valid = [-40, 85]"];
    let versions: std::collections::HashSet<_> = other.iter().map(|rule| version(rule)).collect();
    assert_eq!(versions.len(), other.len());
    assert_eq!(version("version = \"2026 laboratory\"\ngain = 2.0"), "2026 laboratory");
}
