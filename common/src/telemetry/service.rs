//! What the export of spans and its absence have in common.

use std::time::Duration;

/// Time limit of the last export at shutdown. Everything else is done by then, and spans are not worth more delay.
pub const LAST_EXPORT: Duration = Duration::from_secs(2);

/// The program that makes the spans, as resource attributes.
#[derive(Clone, Debug)]
pub struct Service {
    /// `service.name`, unless `otlp.service_name` or `OTEL_RESOURCE_ATTRIBUTES` set one.
    pub name: &'static str,
    /// `service.instance.id`, such as a worker's id.
    pub instance: String,
    /// `service.version`.
    pub version: &'static str,
}
