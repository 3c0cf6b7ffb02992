//! Waits for a point in time of the system's clock.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::sleep;

/// Longest wait before the system's clock is read again, because it may be set meanwhile.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Resolves at `end`; never if there is none.
pub(super) async fn reached(end: Option<OffsetDateTime>) {
    let Some(end) = end else { return std::future::pending().await };
    loop {
        let left = end - OffsetDateTime::now_utc();
        if !left.is_positive() {
            return;
        }
        sleep(left.unsigned_abs().min(MAX_WAIT)).await;
    }
}
