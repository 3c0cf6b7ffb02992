//! Helpers for handlers and sinks whose dependencies are slow or fail: a deadline, a semaphore with a timeout,
//! retries, a circuit breaker, and batches. The pauses between retries are a [`Backoff`](crate::backoff::Backoff).
//!
//! Each takes a future and returns its own error type, so that they can be nested:
//! `breaker.run(|| retry.run(|| deadline(LIMIT, call())))`. Except for the batcher, none spawns a task: a future that
//! is given up is dropped, and nothing of it keeps running.

mod batch;
mod breaker;
mod deadline;
mod retry;
mod semaphore;

pub use self::{
    batch::{BatchConfig, BatchError, Batcher},
    breaker::{Breaker, BreakerConfig, BreakerError, BreakerState},
    deadline::{DeadlineExceeded, deadline},
    retry::Retry,
    semaphore::{NoPermit, Semaphore},
};
