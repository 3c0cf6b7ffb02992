//! Counts an open connection.

use prometheus::IntGauge;

/// Counts a connection in a gauge until it is dropped, also if serving the connection panics.
pub(super) struct ActiveGuard(IntGauge);

impl ActiveGuard {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
