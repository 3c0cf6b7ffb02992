//! Waiting for what must come, with a deadline and the last thing seen in the error.

use std::{fmt::Display, time::Duration};

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep};

/// How long nothing may happen on a busy machine. Only a failure takes that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long anything may take there that goes on, such as a queue that is being emptied.
const LONGEST: Duration = Duration::from_secs(300);

/// Between two looks at a broker's numbers, which are themselves up to half a second old.
const LOOK: Duration = Duration::from_millis(50);

/// What a look saw.
#[derive(Debug)]
pub enum Seen<T> {
    /// What was waited for.
    Wanted(T),
    /// Something else; shown when time is up.
    Other(String),
    /// Something after which it cannot come any more.
    Never(String),
}

impl Seen<()> {
    /// Wanted when `holds`, else what is `shown` instead.
    pub fn when(holds: bool, shown: impl Display) -> Self {
        if holds { Self::Wanted(()) } else { Self::Other(shown.to_string()) }
    }
}

/// Looks until it sees what is wanted. A look that fails is one that has not seen it yet.
///
/// # Errors
/// After [`PATIENCE`] in which every look saw the same, and at the latest after five times that, with `what` was waited for and what was last seen.
pub async fn eventually<T>(what: impl Display, mut look: impl AsyncFnMut() -> Result<Seen<T>>) -> Result<T> {
    let end = Instant::now() + LONGEST;
    let mut deadline = Instant::now() + PATIENCE;
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
            (deadline, last) = ((now + PATIENCE).min(end), other);
        } else if now > deadline {
            return Err(anyhow!("not within {PATIENCE:?}: {what}; last seen: {last}"));
        }
        // Also after a look that took long and waited for nothing: what it looks for comes by tasks of the
        // same runtime.
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_look_is_repeated_and_the_last_other_one_is_shown() {
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
            sleep(PATIENCE * 2 / 3).await;
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
        assert!(began.elapsed() < LONGEST + PATIENCE, "{:?}", began.elapsed());
        let never = eventually("an end", async || Ok(Seen::when(false, 7))).await.unwrap_err();
        assert_eq!(never.to_string(), "not within 60s: an end; last seen: 7");
    }
}
