//! Where spans go, and which are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Invalid, SecretUrl};

/// The settings `otlp.*`, and the standard variables that mean the same (`OTEL_EXPORTER_OTLP_ENDPOINT` and so
/// on), which everything of Garenne's own overrules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Otlp {
    /// The collector, `http` or `https`; `/v1/traces` is added where it is missing. Unset, there are no spans.
    pub endpoint: Option<SecretUrl>,
    /// How it is spoken to.
    pub protocol: OtlpProtocol,
    /// Which traces are kept.
    pub sampler: OtlpSampler,
    /// The share of the traces that begin here that is kept, 0 to 1, where the sampler asks for one.
    pub ratio: f64,
    /// What traces call this program; unset, its own name.
    pub service_name: Option<String>,
    /// How long the collector may take with a batch, 100 ms to 60 s.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP/1.1.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// Which traces are kept, by OpenTelemetry's names. `parentbased`: whoever began the trace decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtlpSampler {
    /// Of traces that begin here `otlp.ratio`.
    #[default]
    #[serde(rename = "parentbased_traceidratio")]
    ParentBasedRatio,
    /// Traces that begin here are all kept.
    #[serde(rename = "parentbased_always_on")]
    ParentBasedAlways,
    /// Traces that begin here are not kept.
    #[serde(rename = "parentbased_always_off")]
    ParentBasedNever,
    /// `otlp.ratio` of all traces.
    #[serde(rename = "traceidratio")]
    Ratio,
    /// Everything, whoever decided otherwise.
    #[serde(rename = "always_on")]
    Always,
    /// Nothing.
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
    /// The first setting that is refused.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(endpoint) = &self.endpoint {
            let url = url::Url::parse(endpoint.expose()).ok();
            if !["http", "https"].contains(&endpoint.scheme()) || url.is_none_or(|url| !url.has_host()) {
                let problem = "expected http:// or https:// and a host, such as http://collector:4318";
                return Err(Invalid::new("otlp.endpoint", format_args!("{:?}", endpoint.masked()), problem));
            }
            if endpoint.expose().contains('@') {
                let problem =
                    "expected no user: OTEL_EXPORTER_OTLP_HEADERS carries what the collector asks for";
                return Err(Invalid::new("otlp.endpoint", format_args!("{:?}", endpoint.masked()), problem));
            }
        }
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(Invalid::new("otlp.ratio", self.ratio, "expected a share from 0 to 1, such as 0.05"));
        }
        if let Some(name) = &self.service_name
            && (name.trim().is_empty() || name.len() > 255)
        {
            let value = format!("{name:?}");
            return Err(Invalid::new("otlp.service_name", value, "expected 1 to 255 bytes"));
        }
        let bounds = Duration::from_millis(100)..=Duration::from_secs(60);
        if !bounds.contains(&self.timeout) {
            let value = humantime::format_duration(self.timeout);
            return Err(Invalid::new("otlp.timeout", value, "expected 100ms to 1m"));
        }
        Ok(())
    }

    /// Where spans are posted to.
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
    fn the_path_is_added_where_it_is_missing() {
        let posted_to = |url| at(url).traces_url().unwrap();
        assert_eq!(posted_to("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(posted_to("http://c:4318/"), "http://c:4318/v1/traces");
        assert_eq!(posted_to("https://c/otlp"), "https://c/otlp/v1/traces");
        assert_eq!(posted_to("https://c/otlp/v1/traces"), "https://c/otlp/v1/traces");
        assert_eq!(Otlp::default().traces_url(), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |otlp: Otlp| {
            let Invalid { setting, value, problem, .. } = otlp.validate().unwrap_err();
            format!("{setting} = {value}: {problem}")
        };
        assert!(Otlp::default().validate().is_ok() && at("https://c").validate().is_ok());
        assert_eq!(
            refused(at("https://u:p@c")),
            "otlp.endpoint = \"https://u:***@c/\": expected no user: OTEL_EXPORTER_OTLP_HEADERS carries what the collector asks for"
        );
        assert_eq!(
            refused(at("grpc://c:4317")),
            "otlp.endpoint = \"grpc://c:4317\": expected http:// or https:// and a host, such as http://collector:4318"
        );
        for ratio in [-0.1, 1.5, f64::NAN] {
            let refused = refused(Otlp { ratio, ..Otlp::default() });
            assert_eq!(refused, format!("otlp.ratio = {ratio}: expected a share from 0 to 1, such as 0.05"));
        }
        let nameless = Otlp { service_name: Some(" ".into()), ..Otlp::default() };
        assert_eq!(refused(nameless), "otlp.service_name = \" \": expected 1 to 255 bytes");
        let hasty = Otlp { timeout: Duration::from_millis(99), ..Otlp::default() };
        assert_eq!(refused(hasty), "otlp.timeout = 99ms: expected 100ms to 1m");
    }
}
