//! Waits for a condition with a deadline. The error contains the last value seen.

use std::{fmt::Display, time::Duration};

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep};

/// Limit without any progress, for a busy machine. Only a failure takes that long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit for a wait with progress, such as a queue that is being emptied.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Interval between two looks. A broker's statistics are up to half a second old themselves.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The result of a look.
#[derive(Debug)]
pub enum Seen<T> {
    /// The awaited value.
    Wanted(T),
    /// Another value, for the error.
    Other(String),
    /// The awaited value cannot come any more.
    Never(String),
}

impl Seen<()> {
    /// `Wanted` if `holds`, else `Other` with `shown`.
    pub fn when(holds: bool, shown: impl Display) -> Self {
        if holds { Self::Wanted(()) } else { Self::Other(shown.to_string()) }
    }
}

/// Looks until it sees the wanted value. An error of a look counts as another value.
///
/// # Errors
/// After [`WAIT_TIMEOUT`] in which every look saw the same, and after five times that in any case, with `what` and the
/// last value.
pub async fn eventually<T>(what: impl Display, mut look: impl AsyncFnMut() -> Result<Seen<T>>) -> Result<T> {
    let end = Instant::now() + MAX_WAIT;
    let mut deadline = Instant::now() + WAIT_TIMEOUT;
    let mut last = String::new();
    loop {
        let other = match look().await {
            Ok(Seen::Wanted(value)) => return Ok(value),
            Ok(Seen::Other(other)) => other,
            Ok(Seen::Never(why)) => return Err(anyhow!("will never be: {what}; seen: {why}")),
            Err(error) => format!("{error:#}"),
        };
        let now = Instant::now();
        if now <= end && other != last {
            (deadline, last) = ((now + WAIT_TIMEOUT).min(end), other);
        } else if now > deadline {
            return Err(anyhow!("not within {WAIT_TIMEOUT:?}: {what}; last seen: {last}"));
        }
        // Also after a look that took long: the value may come from a task of the same runtime.
        sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_look_is_repeated_and_the_last_value_is_in_the_error() {
        let mut looks = 0;
        let third = eventually("the third look", async || {
            looks += 1;
            if looks == 1 {
                anyhow::bail!("not even that");
            }
            Ok(if looks == 3 { Seen::Wanted(looks) } else { Seen::Other(format!("look {looks}")) })
        });
        assert_eq!(third.await.unwrap(), 3);
        let hopeless = eventually("life", async || Ok(Seen::<()>::Never("death".into()))).await.unwrap_err();
        assert_eq!(hopeless.to_string(), "will never be: life; seen: death");
        let mut left = 4;
        let slowly = eventually("all of it", async || {
            sleep(WAIT_TIMEOUT * 2 / 3).await;
            left -= 1;
            Ok(Seen::when(left == 0, left))
        });
        slowly.await.unwrap();
        let mut looks = 0;
        let endless = eventually("an end", async || {
            looks += 1;
            Ok(Seen::when(false, looks))
        });
        let began = Instant::now();
        endless.await.unwrap_err();
        assert!(began.elapsed() < MAX_WAIT + WAIT_TIMEOUT, "{:?}", began.elapsed());
        let never = eventually("an end", async || Ok(Seen::when(false, 7))).await.unwrap_err();
        assert_eq!(never.to_string(), "not within 60s: an end; last seen: 7");
    }
}
