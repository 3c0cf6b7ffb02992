//! A circuit breaker.
//!
//! Not a library's: available breakers open by the failure rate in a window. This one counts failures, forgets them
//! after a time without any, and closes after several successes in a row.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use crate::lock::lock;

/// When a breaker opens and closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Number of failures that opens it, each less than `error_free` after the one before; 0 counts as 1.
    pub failures: u32,
    /// Successes in a row that close it again, and most concurrent calls while it is half-open; 0 counts as 1.
    pub successes: u32,
    /// Time without failures after which earlier ones are forgotten.
    pub error_free: Duration,
    /// How long it stays open before it becomes half-open.
    pub open_for: Duration,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls are made.
    Closed,
    /// All calls are refused.
    Open,
    /// A few calls are made, as trials.
    HalfOpen,
}

/// Why a call through a breaker failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BreakerError<E> {
    /// The call was not made.
    #[error("breaker open for another {left:?}")]
    Open {
        /// Time until it becomes half-open; zero if the trial calls are running.
        left: Duration,
    },
    /// The call was made and failed.
    #[error(transparent)]
    Failed(E),
}

/// A circuit breaker for calls to one dependency. Clones share its state.
#[derive(Debug, Clone)]
pub struct Breaker {
    config: BreakerConfig,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed { failures: u32, last: Option<Instant> },
    Open { until: Instant },
    HalfOpen { successes: u32, trying: u32 },
}

/// Frees the slot of a half-open trial if the call is dropped before it completes.
struct Trial<'a> {
    breaker: &'a Breaker,
    answered: bool,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.answered
            && let State::HalfOpen { trying, .. } = &mut *lock(&self.breaker.state)
        {
            *trying = trying.saturating_sub(1);
        }
    }
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(config: BreakerConfig) -> Self {
        let config =
            BreakerConfig { failures: config.failures.max(1), successes: config.successes.max(1), ..config };
        Self { config, state: Arc::new(Mutex::new(State::Closed { failures: 0, last: None })) }
    }

    /// The state that the next call meets.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        match *lock(&self.state) {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if Instant::now() < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Makes the call unless the breaker is open. A call that is dropped before it completes is not counted.
    ///
    /// # Errors
    /// The breaker is open, or the call failed.
    pub async fn run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        call: impl FnOnce() -> F,
    ) -> Result<T, BreakerError<E>> {
        self.admit().map_err(|left| BreakerError::Open { left })?;
        let mut trial = Trial { breaker: self, answered: false };
        let result = call().await;
        trial.answered = true;
        self.record(result.is_ok());
        result.map_err(BreakerError::Failed)
    }

    fn admit(&self) -> Result<(), Duration> {
        let mut state = lock(&self.state);
        if let State::Open { until } = *state {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Err(left);
            }
            *state = State::HalfOpen { successes: 0, trying: 0 };
        }
        if let State::HalfOpen { successes, trying } = &mut *state {
            if *successes + *trying >= self.config.successes {
                return Err(Duration::ZERO);
            }
            *trying += 1;
        }
        Ok(())
    }

    fn record(&self, ok: bool) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        *state = match (*state, ok) {
            (State::Closed { .. }, true) => return,
            (State::Closed { failures, last }, false) => {
                let stale = last.is_none_or(|last| now.duration_since(last) >= self.config.error_free);
                let failures = if stale { 1 } else { failures + 1 };
                if failures >= self.config.failures {
                    State::Open { until: now + self.config.open_for }
                } else {
                    State::Closed { failures, last: Some(now) }
                }
            }
            (State::HalfOpen { successes, .. }, true) if successes + 1 >= self.config.successes => {
                State::Closed { failures: 0, last: None }
            }
            (State::HalfOpen { successes, trying }, true) => {
                State::HalfOpen { successes: successes + 1, trying: trying.saturating_sub(1) }
            }
            (State::HalfOpen { .. }, false) => State::Open { until: now + self.config.open_for },
            // The call began before the breaker opened: its result is outdated.
            (State::Open { .. }, _) => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker() -> Breaker {
        let config =
            BreakerConfig { failures: 3, successes: 2, error_free: 10 * SECOND, open_for: 5 * SECOND };
        Breaker::new(config)
    }

    async fn call(breaker: &Breaker, ok: bool) -> Result<(), BreakerError<&'static str>> {
        breaker.run(|| async { if ok { Ok(()) } else { Err("failed") } }).await
    }

    async fn slowly(takes: Duration) -> Result<(), &'static str> {
        tokio::time::sleep(takes).await;
        Ok(())
    }

    async fn open(breaker: &Breaker) {
        for _ in 0..3 {
            assert_eq!(call(breaker, false).await, Err(BreakerError::Failed("failed")));
        }
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_at_the_threshold_and_refuses_calls() {
        let breaker = breaker();
        open(&breaker).await;
        tokio::time::sleep(2 * SECOND).await;
        let refused =
            breaker.run(|| async { unreachable!("it is open") as Result<(), &str> }).await.unwrap_err();
        assert_eq!(refused.to_string(), "breaker open for another 3s");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_forgotten_after_the_error_free_time() {
        let breaker = breaker();
        for _ in 0..5 {
            for _ in 0..2 {
                call(&breaker, false).await.unwrap_err();
            }
            // A success does not reset the count of failures, only time does.
            call(&breaker, true).await.unwrap();
            tokio::time::sleep(10 * SECOND).await;
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        open(&breaker).await;
    }

    #[tokio::test(start_paused = true)]
    async fn enough_successes_close_it_and_one_failure_opens_it_again() {
        let breaker = breaker();
        open(&breaker).await;
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        call(&breaker, true).await.unwrap();
        call(&breaker, false).await.unwrap_err();
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::sleep(5 * SECOND).await;
        call(&breaker, true).await.unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        call(&breaker, true).await.unwrap();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn half_open_bounds_concurrent_calls_and_a_dropped_call_frees_its_slot() {
        let breaker = breaker();
        open(&breaker).await;
        tokio::time::sleep(5 * SECOND).await;
        for _ in 0..10 {
            // Dropped before it completes.
            let hanging = breaker.run(std::future::pending::<Result<(), &str>>);
            tokio::time::timeout(SECOND, hanging).await.unwrap_err();
        }
        let (first, second) = (breaker.clone(), breaker.clone());
        let slow = |breaker: Breaker| async move { breaker.run(|| slowly(SECOND)).await };
        let tries = (tokio::spawn(slow(first)), tokio::spawn(slow(second)));
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(call(&breaker, true).await, Err(BreakerError::Open { left: Duration::ZERO }));
        tries.0.await.unwrap().unwrap();
        tries.1.await.unwrap().unwrap();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_of_a_call_from_before_it_opened_is_ignored() {
        let breaker = breaker();
        let slow = breaker.clone();
        let late = tokio::spawn(async move { slow.run(|| slowly(2 * SECOND)).await });
        tokio::time::sleep(SECOND).await;
        open(&breaker).await;
        late.await.unwrap().unwrap();
        assert_eq!(breaker.state(), BreakerState::Open);
    }
}
