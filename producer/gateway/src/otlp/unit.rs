//! Units of OpenTelemetry, which are those of UCUM, as units of the SenML registry.

use garenne_protocol::sensor::Unit;

/// Units of UCUM whose symbol differs in the registry, or stands for another unit there.
const SYMBOLS: [(&str, &str); 31] = [
    ("1", "/"),
    ("%", "/100"),
    ("[ppm]", "ppm"),
    ("[ppb]", "ppb"),
    ("[pH]", "pH"),
    ("By", "B"),
    ("KiBy", "KiB"),
    ("kBy", "kB"),
    ("MBy", "MB"),
    ("GBy", "GB"),
    ("TBy", "TB"),
    ("MiBy", "MiB"),
    ("GiBy", "GiB"),
    ("TiBy", "TiB"),
    ("KiBy/s", "KiB/s"),
    ("MiBy/s", "MiB/s"),
    ("kBy/s", "kB/s"),
    ("GBy/s", "GB/s"),
    ("By/s", "B/s"),
    ("MBy/s", "MB/s"),
    ("/s", "1/s"),
    ("s-1", "1/s"),
    ("/min", "1/min"),
    ("MW.h", "MWh"),
    ("[degF]", "degF"),
    ("[psi]", "psi"),
    ("[mi_i]/h", "mph"),
    ("dB[W]", "dBW"),
    ("dB[mW]", "dBm"),
    ("W.h", "Wh"),
    ("kW.h", "kWh"),
];

/// The unit with this symbol of UCUM. `None` if the registry has none, or if the symbol only names what is counted:
/// `{request}`.
pub(super) fn unit(symbol: &str) -> Option<Unit> {
    let symbol = without_annotations(symbol);
    let known = SYMBOLS.iter().find(|(ucum, _)| *ucum == symbol);
    Unit::get(known.map_or(symbol.as_str(), |(_, senml)| senml))
}

/// `{packet}/s` is `/s`.
fn without_annotations(symbol: &str) -> String {
    let mut depth = 0_usize;
    let kept = symbol.trim().chars().filter(|character| match character {
        '{' => {
            depth += 1;
            false
        }
        '}' => {
            depth = depth.saturating_sub(1);
            false
        }
        _ => depth == 0,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_ucum_are_those_of_the_registry() {
        for (ucum, senml) in [
            ("Cel", Some("Cel")),
            ("s", Some("s")),
            ("ms", Some("ms")),
            ("1", Some("/")),
            ("%", Some("/100")),
            ("By", Some("B")),
            ("MiBy", Some("MiB")),
            ("GiBy", Some("GiB")),
            ("MBy", Some("MB")),
            ("{packet}/s", Some("1/s")),
            ("1{cpu}", Some("/")),
            ("{request}", None),
            ("[degF]", Some("degF")),
            ("m/s2", Some("m/s2")),
            ("L/min", Some("l/min")),
            ("MW.h", Some("MWh")),
            ("m3/h", Some("m3/h")),
            ("furlong", None),
            ("", None),
        ] {
            assert_eq!(unit(ucum).map(Unit::symbol), senml, "{ucum}");
        }
        assert!(SYMBOLS.iter().all(|(_, senml)| Unit::get(senml).is_some()));
    }
}
