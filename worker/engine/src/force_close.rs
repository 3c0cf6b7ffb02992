//! When nothing is waited for any longer, and the little time that is left even then.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// What an answer that is on its way may still take: a healthy sink's or broker's takes milliseconds.
const LAST_ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Completes when even the answers that were on their way are given up.
pub(crate) async fn after_last_answers(force_close: &CancellationToken) {
    force_close.cancelled().await;
    tokio::time::sleep(LAST_ANSWER_GRACE).await;
}
