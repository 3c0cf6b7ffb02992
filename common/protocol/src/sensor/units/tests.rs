use super::*;

fn unit(symbol: &str) -> Unit {
    Unit::parse(symbol).unwrap()
}

#[test]
fn the_registry_is_complete_and_consistent() {
    // 58 rows in RFC 8428 §12.1 and 8 in RFC 8798 §2; 33 in RFC 8798 §3.
    assert_eq!((PRIMARY.len(), SECONDARY.len()), (66, 33));
    for one in Unit::all() {
        assert_eq!(Unit::get(one.symbol()), Some(one), "{one} is in the table twice");
        let base = Unit::get(one.0.base).unwrap();
        assert!(PRIMARY.iter().any(|entry| std::ptr::eq(entry, base.0)), "{one}");
        assert_eq!(base.0.base, one.0.base, "{one}");
    }
}

#[test]
fn conversions_give_exact_values() {
    for (value, from, to, expected) in [
        (100.0, "ms", "s", 0.1),     // RFC 8798's own example
        (10.0, "dBm", "dBW", -20.0), // RFC 8798's own example
        (1013.25, "hPa", "Pa", 101_325.0),
        (12.0, "/100", "/", 0.12),
        (90.0, "km/h", "m/s", 25.0),
        (1.0, "kWh", "J", 3.6e6),
        (1.0, "kWh", "Wh", 1000.0),
        (1.0, "KiB", "B", 1024.0),
        (1.0, "KiB", "bit", 8192.0),
        (1.0, "MB/s", "Mbit/s", 8.0),
        (1.0, "GB", "B", 1e9),
        (1.0, "GB", "bit", 8e9),
        (1.0, "GB", "MB", 1e3),
        (1.0, "MiB", "KiB", 1024.0),
        (1.0, "GiB", "B", 1_073_741_824.0),
        (1.0, "TiB", "GiB", 1024.0),
        (1.0, "GB/s", "MB/s", 1e3),
        (1.0, "Gbit/s", "kbit/s", 1e6),
        (1.0, "L/min", "l/h", 60.0),
        (1.0, "l", "mL", 1e3),
        (3.6, "m3/h", "l/s", 1.0),
        (1.0, "m3/h", "l/h", 1000.0),
        (6.0, "l/min", "l/s", 0.1),
        (60.0, "l/min", "m3/h", 3.6),
        (1.0, "MWh", "kWh", 1000.0),
        (1.0, "MWh", "GJ", 3.6),
        (1.0, "MW", "kW", 1000.0),
        (1500.0, "uS/cm", "mS/cm", 1.5),
        (1.0, "mS/cm", "S/m", 0.1),
        (1.0, "W/m²", "W/m2", 1.0),
        (250.0, "ug/m3", "kg/m3", 2.5e-7),
        (0.0, "K", "Cel", -273.15),
        (25.0, "Cel", "K", 298.15),
        (1500.0, "g", "kg", 1.5),
        (180.0, "deg", "rad", std::f64::consts::PI),
        (72.0, "beat/min", "1/s", 1.2),
    ] {
        assert_eq!(unit(from).convert(value, unit(to)), Ok(expected), "{value} {from}");
    }
}

#[test]
fn a_symbol_may_have_typographic_characters() {
    for (given, symbol) in [
        ("W/m²", Some("W/m2")),
        ("m/s²", Some("m/s2")),
        ("m²", Some("m2")),
        ("m³/h", Some("m3/h")),
        ("µg/m³", Some("ug/m3")),
        ("μg/m³", Some("ug/m3")),
        ("µS/cm", Some("uS/cm")),
        ("ºC", Some("Cel")),
        ("℃", Some("Cel")),
        ("℉", Some("degF")),
        ("Ω", Some("Ohm")),
        ("m⁴", None),
        ("²", None),
    ] {
        assert_eq!(Unit::get(given).map(Unit::symbol), symbol, "{given}");
    }
    assert_eq!(Unit::get(&"²".repeat(1000)), None);
}

/// Values of a series in two spellings are in one unit.
#[test]
fn another_spelling_is_the_same_unit() {
    for (spelling, symbol) in SPELLINGS {
        assert_eq!(unit(spelling).symbol(), *symbol);
        assert!(Unit::all().all(|unit| unit.symbol() != *spelling), "{spelling}");
        let read: Unit = serde_json::from_value((*spelling).into()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), *symbol);
    }
}

#[test]
fn fahrenheit_conversions_are_exact_at_reference_points() {
    for (fahrenheit, celsius) in [(32.0, 0.0), (212.0, 100.0), (-40.0, -40.0), (98.6, 37.0), (68.0, 20.0)] {
        assert_eq!(unit("degF").convert(fahrenheit, unit("Cel")), Ok(celsius));
        assert_eq!(unit("°F").convert(fahrenheit, unit("degF")), Ok(fahrenheit));
    }
}

#[test]
fn every_conversion_round_trips() {
    for from in Unit::all() {
        for to in Unit::all().filter(|to| from.converts_to(*to)) {
            let converted = from.convert(12.345, to).unwrap();
            let back = to.convert(converted, from).unwrap();
            assert!((back - 12.345).abs() < 1e-9, "{from} -> {to}: {back}");
        }
    }
}

#[test]
fn errors_suggest_the_nearest_unit() {
    for (given, message) in [
        ("cel", r#""cel" is not a SenML unit; the nearest is "Cel" (degrees Celsius)"#),
        ("Celsius", r#""Celsius" is not a SenML unit; the nearest is "Cel" (degrees Celsius)"#),
        ("fahrenheit", r#""fahrenheit" is not a SenML unit; the nearest is "degF" (degrees Fahrenheit)"#),
        ("rpm", r#""rpm" is not a SenML unit; the nearest is "1/min" (1 per minute (event rate, rpm))"#),
        ("hPA", r#""hPA" is not a SenML unit; the nearest is "hPa" (hectopascal)"#),
        ("m/s3", r#""m/s3" is not a SenML unit; the nearest is "m/s" (meter per second (velocity))"#),
        ("furlongs", r#""furlongs" is not a SenML unit"#),
        ("", r#""" is not a SenML unit"#),
    ] {
        assert_eq!(Unit::parse(given).unwrap_err().to_string(), message);
    }
    assert_eq!(
        unit("Cel").convert(1.0, unit("%RH")).unwrap_err().to_string(),
        "Cel (degrees Celsius) cannot be converted to %RH (percentage (relative humidity))"
    );
}
