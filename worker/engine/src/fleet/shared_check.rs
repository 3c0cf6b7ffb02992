//! A check that several tasks wait for and that runs once for all of them.

use tokio::{sync::Mutex, time::Instant};

/// When the last complete check started. The lock is held while a check runs.
#[derive(Default)]
pub(super) struct SharedCheck {
    last_started: Mutex<Option<Instant>>,
}

impl SharedCheck {
    /// Runs `check`, unless one that started at `since` or later is complete. Waits while another one runs.
    ///
    /// A check that is dropped before its end does not count.
    pub(super) async fn run_since(&self, since: Instant, check: impl Future<Output = ()>) {
        let mut last_started = self.last_started.lock().await;
        if last_started.is_none_or(|started| started < since) {
            let started = Instant::now();
            check.await;
            *last_started = Some(started);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use futures_util::future::{join, join_all};
    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_check_serves_all_that_asked_before_it_started() {
        let (shared, runs) = (SharedCheck::default(), Cell::new(0));
        let check = || async {
            runs.set(runs.get() + 1);
            sleep(SECOND).await;
        };
        let asked = Instant::now();
        let early = join_all((0..5).map(|_| shared.run_since(asked, check())));
        let late = async {
            sleep(SECOND / 2).await;
            shared.run_since(Instant::now(), check()).await;
        };
        join(early, late).await;
        assert_eq!(runs.get(), 2, "the first check started before the late question");
        shared.run_since(asked, check()).await;
        assert_eq!(runs.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_was_dropped_does_not_count() {
        let (shared, completed) = (SharedCheck::default(), Cell::new(false));
        let asked = Instant::now();
        timeout(SECOND, shared.run_since(asked, std::future::pending())).await.unwrap_err();
        shared.run_since(asked, async { completed.set(true) }).await;
        assert!(completed.get());
    }
}
