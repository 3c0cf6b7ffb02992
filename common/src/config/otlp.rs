//! The settings of traces: collector, sampler and ratio.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Invalid, SecretUrl};

/// The settings `otlp.*`. OpenTelemetry's standard variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, set them as
/// well; every source of Garenne's own takes precedence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Otlp {
    /// The collector's URL, `http` or `https`; `/v1/traces` is appended if missing. Unset, traces are off.
    pub endpoint: Option<SecretUrl>,
    /// The protocol of the export.
    pub protocol: OtlpProtocol,
    /// Which traces are sampled.
    pub sampler: OtlpSampler,
    /// The fraction of traces that are sampled, 0 to 1, for the samplers that use one.
    pub ratio: f64,
    /// `service.name` of the spans, 1 to 255 bytes; unset, the program's name.
    pub service_name: Option<String>,
    /// Time limit for the export of a batch, 100 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

/// The protocol of the export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP/1.1.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// Which traces are sampled, by OpenTelemetry's names. `parentbased` samplers follow the parent's decision; the rest
/// of the name applies to traces that begin here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpSampler {
    /// Samples `otlp.ratio` of the traces that begin here.
    #[default]
    #[serde(rename = "parentbased_traceidratio")]
    ParentBasedRatio,
    /// Samples all traces that begin here.
    #[serde(rename = "parentbased_always_on")]
    ParentBasedAlways,
    /// Samples no trace that begins here.
    #[serde(rename = "parentbased_always_off")]
    ParentBasedNever,
    /// Samples `otlp.ratio` of all traces.
    #[serde(rename = "traceidratio")]
    Ratio,
    /// Samples all traces, also those whose parent is not sampled.
    #[serde(rename = "always_on")]
    Always,
    /// Samples nothing.
    #[serde(rename = "always_off")]
    Never,
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: OtlpProtocol::default(),
            sampler: OtlpSampler::default(),
            ratio: 1.0,
            service_name: None,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Otlp {
    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(endpoint) = &self.endpoint {
            let shown = format!("{:?}", endpoint.masked());
            let url = url::Url::parse(endpoint.expose()).ok();
            let is_http =
                ["http", "https"].contains(&endpoint.scheme()) && url.is_some_and(|url| url.has_host());
            let problem = "expected http:// or https:// and a host, such as http://collector:4318";
            Invalid::unless(is_http, "otlp.endpoint", &shown, problem)?;
            let problem = "expected no user: set the collector's credentials in OTEL_EXPORTER_OTLP_HEADERS";
            Invalid::unless(!endpoint.expose().contains('@'), "otlp.endpoint", &shown, problem)?;
        }
        let problem = "expected a fraction from 0 to 1, such as 0.05";
        Invalid::unless((0.0..=1.0).contains(&self.ratio), "otlp.ratio", self.ratio, problem)?;
        if let Some(name) = &self.service_name {
            let valid = !name.trim().is_empty() && name.len() <= 255;
            Invalid::unless(valid, "otlp.service_name", format_args!("{name:?}"), "expected 1 to 255 bytes")?;
        }
        let valid = (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.timeout);
        let value = humantime::format_duration(self.timeout);
        Invalid::unless(valid, "otlp.timeout", value, "expected 100ms to 1m")
    }

    /// The URL that spans are posted to; `None` with traces off.
    pub fn traces_url(&self) -> Option<String> {
        let url = self.endpoint.as_ref()?.expose().trim_end_matches('/');
        Some(if url.ends_with("/v1/traces") { url.to_owned() } else { format!("{url}/v1/traces") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Otlp {
        Otlp { endpoint: Some(url.parse().unwrap()), ..Otlp::default() }
    }

    #[test]
    fn a_missing_path_is_appended() {
        let posted_to = |url| at(url).traces_url().unwrap();
        assert_eq!(posted_to("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(posted_to("http://c:4318/"), "http://c:4318/v1/traces");
        assert_eq!(posted_to("https://c/otlp"), "https://c/otlp/v1/traces");
        assert_eq!(posted_to("https://c/otlp/v1/traces"), "https://c/otlp/v1/traces");
        assert_eq!(Otlp::default().traces_url(), None);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let refused = |otlp: Otlp| {
            let Invalid { setting, value, problem, .. } = otlp.validate().unwrap_err();
            format!("{setting} = {value}: {problem}")
        };
        assert!(Otlp::default().validate().is_ok() && at("https://c").validate().is_ok());
        assert_eq!(
            refused(at("https://u:p@c")),
            "otlp.endpoint = \"https://u:***@c/\": expected no user: set the collector's credentials in OTEL_EXPORTER_OTLP_HEADERS"
        );
        assert_eq!(
            refused(at("grpc://c:4317")),
            "otlp.endpoint = \"grpc://c:4317\": expected http:// or https:// and a host, such as http://collector:4318"
        );
        for ratio in [-0.1, 1.5, f64::NAN] {
            let refused = refused(Otlp { ratio, ..Otlp::default() });
            assert_eq!(
                refused,
                format!("otlp.ratio = {ratio}: expected a fraction from 0 to 1, such as 0.05")
            );
        }
        let nameless = Otlp { service_name: Some(" ".into()), ..Otlp::default() };
        assert_eq!(refused(nameless), "otlp.service_name = \" \": expected 1 to 255 bytes");
        let hasty = Otlp { timeout: Duration::from_millis(99), ..Otlp::default() };
        assert_eq!(refused(hasty), "otlp.timeout = 99ms: expected 100ms to 1m");
    }
}
