//! What handlers and sinks lean on when others are slow or fail: a deadline, a semaphore whose wait
//! ends, retries, a breaker, batches.
//!
//! Each takes a future and answers with a typed error of its own, so they can be put around each
//! other: `breaker.run(|| retry.run(|| deadline(LIMIT, call())))`. None of them spawns what it was
//! given: a future that is given up is dropped, and nothing of it is left running.

mod batch;
mod breaker;
mod deadline;
mod retry;
mod semaphore;

pub use self::{
    batch::{BatchConfig, BatchError, Batcher, Filtered},
    breaker::{Breaker, BreakerConfig, BreakerError, BreakerState},
    deadline::{DeadlineExceeded, deadline},
    retry::{Backoff, Retry},
    semaphore::{NoPermit, Permit, Semaphore},
};
