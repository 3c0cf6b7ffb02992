//! Validates that the bodies of all deliveries that a worker may hold fit into its memory limit.

use garenne_common::config::{ConfigError, Size};

use crate::settings::WorkerConfig;

/// Validates that the bodies of as many deliveries as the worker's lanes prefetch take at most three quarters of
/// `limit`. An error names the sum that is too large and the settings to change.
pub(crate) fn check(config: &WorkerConfig, limit: Option<Size>) -> Result<(), ConfigError> {
    let Some(limit) = limit else { return Ok(()) };
    // Quarantine prefetches one.
    let deliveries = 1 + config.lanes.iter().map(|(_, lane)| lane.prefetch as u64).sum::<u64>();
    let sum = Size(deliveries.saturating_mul(config.max_payload.0));
    let available = Size(limit.0 / 4 * 3);
    if sum <= available {
        return Ok(());
    }
    Err(ConfigError::Together(format!(
        "{deliveries} deliveries (the prefetch of all lanes, and 1 of quarantine) of max_payload {} may take {sum}, \
         more than {available}, which is three quarters of the memory limit {limit}: lower max_payload or prefetch, \
         or raise the limit",
        config.max_payload
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_the_whole_prefetch_must_fit_into_the_memory_limit() {
        let config = WorkerConfig::default();
        let deliveries: u64 = 1 + config.lanes.iter().map(|(_, lane)| lane.prefetch as u64).sum::<u64>();
        let enough = Size(deliveries * config.max_payload.0 / 3 * 4 + 4);
        assert!(check(&config, None).is_ok() && check(&config, Some(enough)).is_ok());
        let error = check(&config, Some(Size::mib(512))).unwrap_err().to_string();
        let expected = format!(
            "the settings cannot be used together: {deliveries} deliveries (the prefetch of all lanes, and 1 of \
             quarantine) of max_payload 4MiB may take {}, more than 384MiB, which is three quarters of the memory \
             limit 512MiB: lower max_payload or prefetch, or raise the limit",
            Size(deliveries * config.max_payload.0)
        );
        assert_eq!(error, expected);
    }
}
