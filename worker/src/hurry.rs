//! When nothing is waited for any longer, and the little time that is left even then.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// What an answer that is on its way may still take: a healthy sink's or broker's takes milliseconds.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Completes when even the answers that were on their way are given up.
pub(crate) async fn last_word(hurry: &CancellationToken) {
    hurry.cancelled().await;
    tokio::time::sleep(LAST_WORD).await;
}
