//! Waits for a condition with a timeout. The error contains the last observed value.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep};

/// Timeout without progress, long enough for a busy machine, and longer than the 180 s after which RabbitMQ repeats a
/// dead-lettering that found no queue or got no confirm. Only a failure takes that long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(200);

/// Timeout of a wait with progress, such as for a queue that is being emptied.
const MAX_WAIT: Duration = Duration::from_secs(800);

/// Shortest and longest interval between two polls, which grows while the value is another. Polls use much of the CPU time of
/// all scenarios, and a broker's statistics are up to half a second old anyway.
const POLL_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(30)..=Duration::from_millis(200);

/// The result of a poll.
#[derive(Debug)]
pub enum Seen<T> {
    /// The awaited value.
    Wanted(T),
    /// Another value, for the error.
    Other(String),
    /// The awaited value is impossible, so waiting ends with an error.
    Never(String),
}

impl Seen<()> {
    /// `Wanted` if `holds`, else `Other` with `shown`.
    pub fn when(holds: bool, shown: impl Display) -> Self {
        if holds { Self::Wanted(()) } else { Self::Other(shown.to_string()) }
    }
}

/// Polls until it gets the wanted value. An error of a poll counts as another value.
///
/// # Errors
/// After [`WAIT_TIMEOUT`] without a change, and after five times that in any case, with `what` and the last value.
pub async fn eventually<T>(what: impl Display, mut poll: impl AsyncFnMut() -> Result<Seen<T>>) -> Result<T> {
    let end = Instant::now() + MAX_WAIT;
    let mut deadline = Instant::now() + WAIT_TIMEOUT;
    let (mut last, mut interval) = (String::new(), *POLL_INTERVAL.start());
    loop {
        let other = match poll().await {
            Ok(Seen::Wanted(value)) => return Ok(value),
            Ok(Seen::Other(other)) => other,
            Ok(Seen::Never(why)) => return Err(anyhow!("{what} is impossible: {why}")),
            Err(error) => format!("{error:#}"),
        };
        let now = Instant::now();
        if now <= end && other != last {
            (deadline, last) = ((now + WAIT_TIMEOUT).min(end), other);
        } else if now > deadline {
            return Err(anyhow!("not within {WAIT_TIMEOUT:?}: {what}; last seen: {last}"));
        }
        // After a slow poll too: the value may depend on a task of the same runtime.
        sleep(interval).await;
        interval = (interval * 3 / 2).min(*POLL_INTERVAL.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_poll_is_repeated_and_the_last_value_is_in_the_error() {
        let mut polls = 0;
        let third = eventually("the third poll", async || {
            polls += 1;
            if polls == 1 {
                anyhow::bail!("first poll");
            }
            Ok(if polls == 3 { Seen::Wanted(polls) } else { Seen::Other(format!("poll {polls}")) })
        });
        assert_eq!(third.await.unwrap(), 3);
        let impossible =
            eventually("a start", async || Ok(Seen::<()>::Never("ended".into()))).await.unwrap_err();
        assert_eq!(impossible.to_string(), "a start is impossible: ended");
        let mut left = 4;
        let slowly = eventually("an empty queue", async || {
            sleep(WAIT_TIMEOUT * 2 / 3).await;
            left -= 1;
            Ok(Seen::when(left == 0, left))
        });
        slowly.await.unwrap();
        let mut polls = 0;
        let endless = eventually("an end", async || {
            polls += 1;
            Ok(Seen::when(false, polls))
        });
        let began = Instant::now();
        endless.await.unwrap_err();
        assert!(began.elapsed() < MAX_WAIT + WAIT_TIMEOUT, "{:?}", began.elapsed());
        let never = eventually("an end", async || Ok(Seen::when(false, 7))).await.unwrap_err();
        assert_eq!(never.to_string(), "not within 200s: an end; last seen: 7");
    }
}
