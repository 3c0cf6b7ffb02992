//! The time of day.

use std::time::SystemTime;

/// The time now, or that of the simulation on this thread.
pub fn now() -> SystemTime {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::now() {
        return now;
    }
    SystemTime::now()
}
