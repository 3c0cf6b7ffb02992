//! Parses a column's heading into metric and unit.

use garenne_protocol::sensor::Unit;

/// Spellings of units in headings that differ from the symbol of the SenML registry.
const SPELLINGS: &[(&str, &str)] = &[
    ("C", "Cel"),
    ("celsius", "Cel"),
    ("F", "degF"),
    ("fahrenheit", "degF"),
    ("kelvin", "K"),
    ("lux", "lx"),
    ("mps", "m/s"),
    ("kmh", "km/h"),
    ("kph", "km/h"),
    ("ugm3", "ug/m3"),
    ("mgm3", "mg/m3"),
    ("mb", "mbar"),
    ("volt", "V"),
    ("volts", "V"),
    ("watt", "W"),
    ("watts", "W"),
    ("rh", "%RH"),
    ("%rh", "%RH"),
    ("RH", "%RH"),
];

/// Single-letter units and the words of a heading that they fit: `sensor_A` is not a current.
const LETTERS: &[(&str, &[&str])] = &[
    ("C", &["temp", "dew", "therm", "heat", "air", "water", "soil"]),
    ("F", &["temp", "dew", "therm", "heat", "air", "water", "soil"]),
    ("K", &["temp", "dew", "therm", "heat", "air"]),
    ("V", &["volt", "batt", "supply"]),
    ("A", &["curr", "amp"]),
    ("W", &["power", "load"]),
    ("m", &["dist", "height", "alt", "depth", "level", "visib"]),
];

/// Symbols of units that are also usual names of metrics.
const NAMES: &[&str] = &["pH", "lat", "lon", "count", "beats", "EL", "T", "H", "S"];

/// Last parts of a rate that are no unit or a usual name.
const DENOMINATORS: &[&str] = &["hr", "hour", "d", "day", "week", "month", "year", "km", "100km"];

/// Splits a heading such as `temperature_C`, `Humidity (%)` or `pressure [hPa]` into metric and unit. Without a unit,
/// the whole heading is the metric.
pub(super) fn metric_and_unit(heading: &str) -> (String, Option<Unit>) {
    let heading = heading.trim();
    if let Some((metric, unit)) = bracketed(heading).or_else(|| suffixed(heading)) {
        return (metric.to_owned(), Some(unit));
    }
    (heading.to_owned(), None)
}

/// Splits a heading such as `roof/temperature [°C]` into a device and a heading of its metric, at the last separator that is
/// not part of a unit or of a bracket at the end.
pub(super) fn device_and_heading(heading: &str, separator: char) -> Option<(&str, &str)> {
    let heading = heading.trim();
    if unit(heading, "").is_some() {
        return None;
    }
    let (metric, _) = metric_and_unit(heading);
    let name = &heading[..metric.len()];
    let bracket = [(')', '('), (']', '[')]
        .into_iter()
        .find_map(|(close, open)| name.ends_with(close).then(|| name.rfind(open)).flatten());
    let at = name[..bracket.unwrap_or(name.len())].rfind(separator)?;
    Some((heading[..at].trim_end(), heading[at + separator.len_utf8()..].trim_start()))
}

/// Whether device and metric of a heading with `/` are more likely one quantity: `kWh/day` is a rate, `rain/h` too, and
/// `p/hPa` is a quantity and its unit.
pub(super) fn is_quantity(device: &str, heading: &str) -> bool {
    let is_unit = |symbol: &str| Unit::get(symbol).is_some() && !NAMES.contains(&symbol);
    DENOMINATORS.contains(&heading) || is_unit(heading) || device.chars().count() > 1 && is_unit(device)
}

/// The unit of a metric in a cell, in any spelling that a heading may have. A symbol that can only be a spelling of
/// another unit is read as that: the temperature of a recording is in degrees Celsius, not in coulombs.
pub(super) fn unit_of(symbol: &str, metric: &str) -> Result<Unit, String> {
    let known = Unit::get(symbol).or_else(|| unit(symbol, metric));
    let unit = known.map_or_else(|| Unit::parse(symbol).map_err(|error| error.to_string()), Ok)?;
    Ok(unit.meant_for(metric).unwrap_or(unit))
}

fn bracketed(heading: &str) -> Option<(&str, Unit)> {
    let split = |open: char, close: char| heading.strip_suffix(close)?.rsplit_once(open);
    let (metric, symbol) = split('(', ')').or_else(|| split('[', ']'))?;
    let metric = metric.trim_end_matches(['_', ' ']);
    let unit = unit(symbol.trim(), metric).filter(|_| !metric.is_empty())?;
    Some((metric, unit))
}

fn suffixed(heading: &str) -> Option<(&str, Unit)> {
    let candidates = ["_ug_m3", "_mg_m3", "_m_s"]
        .into_iter()
        .filter_map(|ending| heading.strip_suffix(ending).map(|metric| (metric, &ending[1..])));
    let last = heading.rsplit_once(['_', ' ']);
    candidates.chain(last).find_map(|(metric, symbol)| {
        let metric = metric.trim_end_matches(['_', ' ']);
        let word = metric.to_lowercase();
        let fits = match LETTERS.iter().find(|(letter, _)| *letter == symbol) {
            Some((_, words)) => words.iter().any(|hint| word.contains(hint)),
            // `temp_min` is a minimum. Other single letters, such as `s` and `h`, are rarely units.
            None => symbol.chars().count() > 1 && symbol != "min" || symbol == "%",
        };
        (fits && !metric.is_empty()).then(|| unit(symbol, metric)).flatten().map(|unit| (metric, unit))
    })
}

fn unit(symbol: &str, metric: &str) -> Option<Unit> {
    if matches!(symbol.to_lowercase().as_str(), "%" | "pct" | "percent") {
        let metric = metric.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| metric.contains(word));
        return Unit::get(match () {
            () if has(&["hum", "rh"]) => "%RH",
            () if has(&["batt"]) => "%EL",
            () => "/100",
        });
    }
    let symbol: String = symbol.replace(' ', "").chars().map(plain).collect();
    let spelled = SPELLINGS.iter().find(|(spelling, _)| *spelling == symbol);
    let spelled = spelled.or_else(|| {
        SPELLINGS.iter().find(|(spelling, _)| spelling.len() > 2 && spelling.eq_ignore_ascii_case(&symbol))
    });
    Unit::get(spelled.map_or(symbol.as_str(), |(_, symbol)| symbol))
}

/// Replaces characters that are written in several ways: `µg/m³` and `ug_m3` become `ug/m3`.
fn plain(character: char) -> char {
    match character {
        'µ' | 'μ' => 'u',
        '³' => '3',
        'º' => '°',
        '_' => '/',
        _ => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clear_units_are_taken_from_headings() {
        for (heading, metric, unit) in [
            ("temperature_C", "temperature", Some("Cel")),
            ("humidity_pct", "humidity", Some("%RH")),
            ("battery_pct", "battery", Some("%EL")),
            ("fill (%)", "fill", Some("/100")),
            ("Temp (°C)", "Temp", Some("Cel")),
            ("water_temp_F", "water_temp", Some("degF")),
            ("pressure [hPa]", "pressure", Some("hPa")),
            ("pm25_ug_m3", "pm25", Some("ug/m3")),
            ("wind speed m/s", "wind speed", Some("m/s")),
            ("light_lux", "light", Some("lx")),
            ("pm10 [µg/m³]", "pm10", Some("ug/m3")),
            ("pm10 (μg/m³)", "pm10", Some("ug/m3")),
            ("steam (g/m³)", "steam", Some("g/m3")),
            ("Tmax (deg C)", "Tmax", Some("Cel")),
            ("Tmax (º C)", "Tmax", Some("Cel")),
            ("Tmax [ºF]", "Tmax", Some("degF")),
            ("wind_m_s", "wind", Some("m/s")),
            ("flow (L/min)", "flow", Some("l/min")),
            ("memory (MiB)", "memory", Some("MiB")),
            ("CO(GT)", "CO(GT)", None),
            ("PT08.S1(CO)", "PT08.S1(CO)", None),
            ("sensor_A", "sensor_A", None),
            ("temp_min", "temp_min", None),
            ("temp", "temp", None),
            ("value", "value", None),
        ] {
            let (got, got_unit) = metric_and_unit(heading);
            assert_eq!((got.as_str(), got_unit.map(Unit::symbol)), (metric, unit), "{heading}");
        }
    }

    #[test]
    fn a_heading_is_split_at_its_last_separator_that_is_not_in_a_unit() {
        for (heading, device, metric) in [
            ("roof/temperature", "roof", "temperature"),
            ("roof/temperature [°C]", "roof", "temperature [°C]"),
            ("site/room 2/temperature_C", "site/room 2", "temperature_C"),
            ("roof / wind (m/s)", "roof", "wind (m/s)"),
            ("roof/wind m/s", "roof", "wind m/s"),
            ("roof/flow [gal/min]", "roof", "flow [gal/min]"),
            ("roof/", "roof", ""),
            ("/temperature", "", "temperature"),
        ] {
            assert_eq!(device_and_heading(heading, '/'), Some((device, metric)), "{heading}");
        }
        for heading in ["temperature", "wind m/s", "wind_m_s", "km/h", "flow [gal/min]", "flow (l/min)"] {
            assert_eq!(device_and_heading(heading, '/'), None, "{heading}");
        }
        assert_eq!(device_and_heading("roof.wind [m/s]", '.'), Some(("roof", "wind [m/s]")));
        assert_eq!(device_and_heading("dach→wind", '→'), Some(("dach", "wind")));
    }

    #[test]
    fn a_rate_and_a_quantity_with_its_unit_name_no_device() {
        for heading in ["kWh/day", "rain/h", "fuel/100km", "p/hPa", "Temperatur/°C", "U/V", "wind/m/s"] {
            let (device, metric) = device_and_heading(heading, '/').unwrap();
            assert!(is_quantity(device, metric), "{heading}");
        }
        for heading in
            ["roof/T", "pool/pH", "truck/lat", "A/temperature", "door/count", "NOx/NO", "roof/power [W]"]
        {
            let (device, metric) = device_and_heading(heading, '/').unwrap();
            assert!(!is_quantity(device, metric), "{heading}");
        }
    }

    #[test]
    fn a_unit_in_a_cell_may_have_the_spelling_of_a_heading() {
        for (symbol, metric, unit) in [
            ("µg/m³", "pm10", "ug/m3"),
            ("μg/m3", "pm10", "ug/m3"),
            ("ug/m3", "pm10", "ug/m3"),
            ("deg C", "temp", "Cel"),
            ("C", "temp", "Cel"),
            ("C", "charge", "C"),
            ("percent", "humidity", "%RH"),
        ] {
            assert_eq!(unit_of(symbol, metric).map(Unit::symbol), Ok(unit), "{symbol} {metric}");
        }
        assert!(unit_of("kw", "power").unwrap_err().starts_with("\"kw\" is not a SenML unit"));
    }
}
