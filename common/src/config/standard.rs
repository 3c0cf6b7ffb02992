//! OpenTelemetry's standard environment variables that correspond to settings `otlp.*`.

use std::{collections::BTreeMap, ffi::OsString};

/// Fields of `otlp` and their variables; the first that is set wins.
const FIELDS: [(&str, &[&str]); 6] = [
    ("endpoint", &["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]),
    ("protocol", &["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]),
    ("timeout", &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]),
    ("sampler", &["OTEL_TRACES_SAMPLER"]),
    ("ratio", &["OTEL_TRACES_SAMPLER_ARG"]),
    ("service_name", &["OTEL_SERVICE_NAME"]),
];

/// Variables that turn traces off, with the value that does so.
const OFF: [(&str, &str); 2] = [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")];

/// A setting given by a standard variable.
pub(super) struct Given {
    pub(super) setting: Vec<String>,
    pub(super) variable: &'static str,
    pub(super) value: OsString,
}

/// The settings given by standard variables; none if one of them turns traces off.
pub(super) fn given(environment: &[(OsString, OsString)]) -> Vec<Given> {
    let otel: BTreeMap<&str, &OsString> = environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?, value)))
        .filter(|(name, value)| name.starts_with("OTEL_") && !value.is_empty())
        .collect();
    let off = |(name, value): &(&str, &str)| {
        otel.get(name)
            .is_some_and(|given| given.to_str().is_some_and(|it| it.trim().eq_ignore_ascii_case(value)))
    };
    if OFF.iter().any(off) {
        return Vec::new();
    }
    let found = FIELDS.iter().filter_map(|(field, variables)| {
        let (variable, value) = variables.iter().find_map(|name| Some((*name, *otel.get(name)?)))?;
        let mut value = value.clone();
        // The standard's value is a number of milliseconds without a unit.
        if *field == "timeout" && value.to_str().is_some_and(|it| it.trim().parse::<u64>().is_ok()) {
            value.push("ms");
        }
        let setting = vec!["otlp".to_owned(), (*field).to_owned()];
        Some(Given { setting, variable, value })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given_by(environment: &[(&str, &str)]) -> Vec<String> {
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let shown = |it: &Given| format!("{}={}", it.setting.join("."), it.value.to_str().unwrap());
        given(&environment).iter().map(shown).collect()
    }

    #[test]
    fn standard_variables_are_settings() {
        let all = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.1"),
            ("OTEL_SERVICE_NAME", ""),
        ];
        let expected = [
            "otlp.endpoint=http://c:4318",
            "otlp.timeout=2500ms",
            "otlp.sampler=traceidratio",
            "otlp.ratio=0.1",
        ];
        assert_eq!(given_by(&all), expected);
        let both =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")];
        assert_eq!(given_by(&both), ["otlp.endpoint=http://b"]);
    }

    #[test]
    fn standard_switches_turn_traces_off() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert!(given_by(&[endpoint, ("OTEL_SDK_DISABLED", "True")]).is_empty());
        assert!(given_by(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).is_empty());
        assert_eq!(given_by(&[endpoint, ("OTEL_SDK_DISABLED", "false")]).len(), 1);
    }
}
