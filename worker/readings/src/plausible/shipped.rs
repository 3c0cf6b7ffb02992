//! The shipped table: codes of common sensors that mean "no value", and the physical limits of values.
//!
//! A unit tells the quantity; without one, the name of the metric does. Numbers are compared before names, because nearly
//! no value is a code or beyond a limit.

use std::sync::LazyLock;

use garenne_protocol::sensor::{
    Unit, is_code,
    quantity::{HUMIDITY, PRESSURE, TEMPERATURE, Words},
    without_labels,
};

/// Words in the name of a metric that is the difference of two values, which may be negative in every unit.
const DIFFERENCE: [&str; 6] = ["difference", "differential", "diff", "delta", "deviation", "change"];

/// Words in the name of a metric that is the pressure of the air.
const ATMOSPHERIC: [&str; 3] = ["atmospheric", "barometric", "barometer"];

/// Words in the name of another absolute pressure. Other pressures are relative to that of the air, as a gauge measures
/// them, or their name does not say it.
const ABSOLUTE: [&str; 2] = ["absolute", "abs"];

/// A pressure that the air never has, in Pa. The highest one measured is 1,084 hPa.
const MAX_ATMOSPHERIC: f64 = 120_000.0;

/// The ends of 32-bit numbers, with and without a sign.
const ENDS_OF_32_BITS: [f64; 3] = [2_147_483_647.0, -2_147_483_648.0, 4_294_967_295.0];

/// Quantities that may have the value of such an end: those that are summed, and those with very small units.
const WIDE_QUANTITIES: [&str; 15] = [
    "energy",
    "apparent_energy",
    "reactive_energy",
    "charge",
    "volume",
    "mass",
    "amount",
    "count",
    "heart_beats",
    "duration",
    "information",
    "data_rate",
    "frequency",
    "resistance",
    "radioactivity",
];

/// What loggers write instead of a value.
const OF_LOGGERS: [f64; 7] = [-888.0, -999.0, -999.9, -999.99, -9_999.0, -9_999.9, -99_999.0];

/// Codes that sensors and loggers of a quantity send instead of a value: the ends of 16-bit numbers, whole or in tenths or
/// hundredths, and [`OF_LOGGERS`], as far as no value of the quantity is equal to them. The ends of 32-bit numbers, also in
/// tenths or hundredths, are codes of each of these quantities.
struct Codes {
    codes: &'static [f64],
    of_loggers: &'static [f64],
    /// Symbols of units of the quantity.
    units: &'static [&'static str],
    /// In which the codes are compared too: the sensor may have converted them.
    also_in: Option<&'static LazyLock<Unit>>,
    /// What names the quantity in a metric. Decides for values without a unit.
    names: &'static Words,
}

const OF_PRESSURES: [f64; 6] = [6_553.5, 65_535.0, 3_276.7, 32_767.0, -3_276.8, -32_768.0];

static CODES: [Codes; 7] = [
    Codes {
        // -127 °C is a DS18B20 that does not answer. 85 °C, its value after a reset, is also a temperature.
        codes: &[-127.0, 327.67, 655.35, 3_276.7, 6_553.5, 32_767.0, 65_535.0, -327.68, -3_276.8, -32_768.0],
        of_loggers: &OF_LOGGERS,
        units: &["Cel", "K", "degF"],
        also_in: Some(&CELSIUS),
        names: &TEMPERATURE,
    },
    Codes {
        codes: &[655.35, 6_553.5, 65_535.0],
        of_loggers: &OF_LOGGERS,
        units: &["%RH", "/100", "/", "%"],
        also_in: None,
        names: &Words { word: |word| (HUMIDITY.word)(word) || word.contains("moisture"), whole: &["soil"] },
    },
    Codes {
        codes: &[6_553.5, 65_535.0],
        of_loggers: &OF_LOGGERS,
        units: &["ug/m3", "ppm", "ppb"],
        also_in: None,
        names: &Words { word: is_concentration, whole: &[] },
    },
    Codes {
        codes: &[6_553.5, 65_535.0],
        of_loggers: &OF_LOGGERS,
        units: &["lx"],
        also_in: None,
        names: &Words {
            word: |word| word.contains("illumin") || word.contains("lux") || word == "light",
            whole: &[],
        },
    },
    Codes {
        codes: &OF_PRESSURES,
        // -999 hPa is nearly a vacuum.
        of_loggers: &[-9_999.0, -9_999.9, -99_999.0],
        units: &["hPa", "mbar", "kPa", "bar"],
        also_in: Some(&HECTOPASCAL),
        names: &PRESSURE,
    },
    Codes {
        codes: &OF_PRESSURES,
        // -9,999 Pa is a little suction.
        of_loggers: &[],
        units: &["Pa"],
        also_in: Some(&HECTOPASCAL),
        names: &Words { word: |_| false, whole: &[] },
    },
    Codes {
        codes: &[],
        of_loggers: &OF_LOGGERS,
        units: &["m/s", "km/h", "mph", "mm/h", "W/m2", "pH", "dB", "dBm"],
        also_in: None,
        names: &Words {
            word: |word| {
                ["wind", "gust", "rain", "precipitation", "irradiance", "radiation"]
                    .iter()
                    .any(|name| word.starts_with(name))
            },
            whole: &[],
        },
    },
];

static CELSIUS: LazyLock<Unit> = LazyLock::new(|| Unit::get("Cel").expect("a registered unit"));
static HECTOPASCAL: LazyLock<Unit> = LazyLock::new(|| Unit::get("hPa").expect("a registered unit"));
static PASCAL: LazyLock<Unit> = LazyLock::new(|| Unit::get("Pa").expect("a registered unit"));

/// `co2`, `eCO2`, `pm25`, `pm2` of `pm2.5`, `tvoc`.
fn is_concentration(word: &str) -> bool {
    let is_particles =
        || word.strip_prefix("pm").is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit()));
    word.ends_with("co2") || word.ends_with("voc") || is_particles()
}

/// Whether a number, in the unit in which it was sent, is a code that means "no value" for the metric.
pub(crate) fn is_no_value(metric: &str, number: f64, unit: Option<Unit>) -> bool {
    let metric = without_labels(metric);
    let is_end_of_32_bits = |scale: f64| ENDS_OF_32_BITS.iter().any(|end| is_code(number, end / scale));
    let is_wide = |unit: Unit| WIDE_QUANTITIES.contains(&unit.quantity());
    let is_end = unit.is_some_and(|unit| is_end_of_32_bits(1.0) && !is_wide(unit));
    let is_scaled_end = [1.0, 10.0, 100.0].into_iter().any(is_end_of_32_bits);
    let is_of_table = || {
        CODES.iter().any(|quantity| {
            let Codes { codes, of_loggers, units, also_in, .. } = quantity;
            let is_of_unit = unit.is_some_and(|unit| units.contains(&unit.symbol()));
            // -127 °C is -196.6 °F.
            let converted = also_in.filter(|_| is_of_unit).and_then(|to| unit?.convert(number, **to).ok());
            let is_one =
                |code: &f64| is_code(number, *code) || converted.is_some_and(|it| is_code(it, *code));
            (is_scaled_end || codes.iter().chain(*of_loggers).any(is_one))
                && (is_of_unit || unit.is_none() && quantity.names.are_in(metric))
        })
    };
    (is_end || is_of_table()) && !has_word(metric, &DIFFERENCE)
}

/// Whether a value of a metric is physically impossible in its unit. Units without known limits allow every value.
pub(crate) fn is_impossible(metric: &str, value: f64, unit: Unit) -> bool {
    let metric = without_labels(metric);
    let (low, high) = match unit.symbol() {
        "Cel" => (-273.15, f64::INFINITY),
        "degF" => (-459.67, f64::INFINITY),
        "%RH" | "%EL" => (0.0, 100.0),
        "lat" => (-90.0, 90.0),
        "lon" => (-180.0, 180.0),
        "K" | "lx" | "kg/m3" | "ug/m3" | "count" => (0.0, f64::INFINITY),
        "/100" => (0.0, 100.0),
        "/" | "%" => (0.0, 1.0),
        "Pa" | "hPa" | "kPa" | "mbar" | "bar" | "psi" => {
            (0.0, PASCAL.convert(MAX_ATMOSPHERIC, unit).unwrap_or(f64::INFINITY))
        }
        _ => return false,
    };
    if (low..=high).contains(&value) || has_word(metric, &DIFFERENCE) {
        return false;
    }
    match unit.symbol() {
        // Other ratios have no limits.
        "/100" | "/" | "%" => CODES[1].names.are_in(metric),
        "Pa" | "hPa" | "kPa" | "mbar" | "bar" | "psi" => {
            has_word(metric, &ATMOSPHERIC) || value < 0.0 && has_word(metric, &ABSOLUTE)
        }
        _ => true,
    }
}

fn has_word(metric: &str, wanted: &[&str]) -> bool {
    metric
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| wanted.iter().any(|wanted| word.eq_ignore_ascii_case(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impossible(metric: &str, value: f64, unit: &str) -> bool {
        is_impossible(metric, value, Unit::parse(unit).unwrap())
    }

    #[test]
    fn codes_of_common_sensors_are_no_values() {
        let unit = |symbol: &str| (!symbol.is_empty()).then(|| Unit::parse(symbol).unwrap());
        for (metric, number, symbol, expected) in [
            ("pm25", 65_535.0, "ug/m3", true),
            ("pm25,room=2", 65_535.0, "", true),
            ("db.rows,table=temperature", 65_535.0, "", false),
            ("disk.free,path=/var/rain/temp", 65_535.0, "", false),
            ("pm2.5", 65_535.0, "", true),
            ("pm10", 6_553.5, "", true),
            ("air.co2", 65_535.0, "ppm", true),
            ("eCO2", 65_535.0, "", true),
            ("illuminance", 65_535.0, "lx", true),
            ("illuminance_lux", 65_535.0, "", true),
            ("illuminance", 65_534.0, "lx", false),
            ("temperature", 327.67, "Cel", true),
            ("temperature", -327.68, "Cel", true),
            ("temperature", f64::from(327.67_f32), "degC", true),
            ("temperature", -127.0, "Cel", true),
            ("temperature", -196.6, "degF", true),
            ("temperature", 146.15, "K", true),
            ("t", -127.0, "Cel", true),
            ("DS18B20.Temperature", -127.0, "", true),
            ("roomTemp", -127.0, "", true),
            ("temperature", -126.9375, "Cel", false),
            // Also a temperature, and also a number of a series without a name that tells.
            ("temperature", 85.0, "Cel", false),
            ("level", -127.0, "", false),
            ("rssi", -127.0, "dBm", false),
            ("temperature_difference", -127.0, "Cel", false),
            ("pressure", 6_553.5, "hPa", true),
            ("pressure", 655.35, "hPa", false),
            ("pressure", 655.35, "kPa", true),
            ("pressure", 655_350.0, "Pa", true),
            ("pressure", 65_535.0, "Pa", true),
            ("pressure", 6.5535, "bar", true),
            ("pressure", 65.535, "bar", true),
            ("pressure", 6.55, "bar", false),
            ("pressure", -9_999.0, "Pa", false),
            ("pressure", 101_325.0, "Pa", false),
            // Names without a unit.
            ("temp1", -127.0, "", true),
            ("temp_2", -127.0, "", true),
            ("TempC1", -127.0, "", true),
            ("tempC", 327.67, "", true),
            ("watertempf", -999.0, "", true),
            ("Temp1Outside", -127.0, "", true),
            ("temp1outside", -127.0, "", true),
            ("t", -127.0, "", true),
            ("T2", -127.0, "", true),
            ("kitchen/t", -127.0, "", true),
            ("rh", 655.35, "", true),
            ("RH1", 655.35, "", true),
            ("hum_in", 655.35, "", true),
            ("soil", 655.35, "", true),
            ("bed3.soil_2", 655.35, "", true),
            ("baro", 6_553.5, "", true),
            ("baromrelin", 6_553.5, "", true),
            ("press", 6_553.5, "", true),
            ("CO2Level", 65_535.0, "", true),
            ("soil_conductivity", 655.35, "", false),
            ("energyT", 65_535.0, "", false),
            ("t_on", 65_535.0, "", false),
            ("attempts", 65_535.0, "", false),
            ("template", 65_535.0, "", false),
            ("tempo", -127.0, "", false),
            ("rhythm", 655.35, "", false),
            ("button_press", 65_535.0, "", false),
            ("threshold", 65_535.0, "", false),
            ("soil_moisture", 655.35, "/100", true),
            ("soil.moisture", 655.35, "", true),
            ("humidity", 655.35, "%RH", true),
            ("energy", 65_535.0, "kWh", false),
            ("counter", 65_535.0, "", false),
            ("power", 65_535.0, "W", false),
            // What loggers write.
            ("temperature", -999.0, "Cel", true),
            ("temperature", -999.0, "", true),
            ("room_temp", -9_999.9, "", true),
            ("humidity", -999.0, "", true),
            ("co2", -999.0, "ppm", true),
            ("pm10", -99_999.0, "", true),
            ("pressure", -999.0, "hPa", false),
            ("pressure", -9_999.0, "hPa", true),
            ("wind_speed", -999.0, "m/s", true),
            ("rain", -999.9, "", true),
            ("irradiance", -999.0, "W/m2", true),
            ("temperature", -200.0, "Cel", false),
            ("balance", -999.0, "", false),
            ("power", -999.0, "W", false),
            ("level", -999.0, "mm", false),
            // 32 bits.
            ("temperature", 2_147_483_647.0, "Cel", true),
            ("temperature", 21_474_836.47, "", true),
            ("temperature", -214_748_364.8, "degC", true),
            ("humidity", 4_294_967_295.0, "", true),
            ("co2", f64::from(4_294_967_295.0_f32), "ppm", true),
            ("power", -2_147_483_648.0, "W", true),
            ("voltage", 4_294_967_295.0, "mV", true),
            ("distance", 4_294_967_295.0, "mm", true),
            ("pressure", 2_147_483_647.0, "Pa", true),
            ("power", 21_474_836.47, "W", false),
            ("energy", 4_294_967_295.0, "Wh", false),
            ("volume", 2_147_483_647.0, "l", false),
            ("uptime", 4_294_967_295.0, "ms", false),
            ("received", 2_147_483_647.0, "B", false),
            ("pulses", 4_294_967_295.0, "count", false),
            ("pulses", 4_294_967_295.0, "", false),
            ("temperature_difference", -999.0, "Cel", false),
        ] {
            assert_eq!(is_no_value(metric, number, unit(symbol)), expected, "{metric} {number} {symbol}");
        }
    }

    #[test]
    fn values_beyond_the_limits_of_their_unit_are_impossible() {
        for (unit, low, high) in
            [("Cel", -273.15, f64::MAX), ("K", 0.0, f64::MAX), ("%RH", 0.0, 100.0), ("lat", -90.0, 90.0)]
        {
            assert!(!impossible("m", low, unit) && !impossible("m", high, unit), "{unit}");
            assert!(impossible("m", low.next_down(), unit), "{unit}");
            assert_eq!(impossible("m", high.next_up(), unit), high < f64::MAX, "{unit}");
        }
        assert!(!impossible("m", -1e9, "m/s"));
    }

    #[test]
    fn a_metric_limits_what_its_unit_does_not() {
        for (metric, value, unit, expected) in [
            ("soil_moisture", 655.35, "/100", true),
            ("soilMoisture", 100.1, "/100", true),
            ("rh", 100.1, "/100", true),
            ("soil_moisture", 100.0, "/100", false),
            ("soil_moisture", 6.5535, "/", true),
            ("soil_moisture", 1.0, "/", false),
            ("growth", 655.35, "/100", false),
            ("moisture_change", -5.0, "/100", false),
            ("barometric_pressure", 1_084.0, "hPa", false),
            ("barometric_pressure", 1_300.0, "hPa", true),
            ("barometric_pressure", 1.3, "bar", true),
            ("absolute_pressure", 1_300.0, "hPa", false),
            ("pressure", 1_300.0, "hPa", false),
        ] {
            assert_eq!(impossible(metric, value, unit), expected, "{metric} {value} {unit}");
        }
    }

    #[test]
    fn only_an_absolute_pressure_cannot_be_negative() {
        for unit in ["Pa", "hPa", "kPa", "mbar", "bar", "psi"] {
            for metric in
                ["pressure", "gauge_pressure", "differential-pressure", "filter.dp", "absorber_pressure"]
            {
                assert!(!impossible(metric, -0.2, unit), "{metric} {unit}");
            }
            for metric in
                ["absolute_pressure", "pressure-abs", "Barometric Pressure", "hall/atmospheric.pressure"]
            {
                assert!(impossible(metric, -0.2, unit), "{metric} {unit}");
                assert!(!impossible(metric, 0.0, unit), "{metric} {unit}");
            }
        }
    }

    #[test]
    fn a_difference_may_be_negative_in_every_unit() {
        for (metric, unit) in [
            ("temperature_difference", "K"),
            ("delta_humidity", "%RH"),
            ("level.change", "count"),
            ("absolute_pressure_deviation", "hPa"),
        ] {
            assert!(!impossible(metric, -3.0, unit), "{metric}");
        }
        assert!(impossible("temperature", -3.0, "K"));
    }
}
