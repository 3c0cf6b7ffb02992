//! The grace period after a forced shutdown.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Grace period after a forced shutdown for operations in flight. A healthy sink or broker answers within
/// milliseconds.
const LAST_ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Completes when operations in flight must be abandoned: [`LAST_ANSWER_GRACE`] after `force_close` is cancelled.
pub(crate) async fn after_last_answers(force_close: &CancellationToken) {
    force_close.cancelled().await;
    tokio::time::sleep(LAST_ANSWER_GRACE).await;
}
