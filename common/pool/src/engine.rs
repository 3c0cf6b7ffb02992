//! What moves tasks through the pool. Each module imports only modules above it in this list.

pub(crate) mod counters;
mod observer_hook;

pub(crate) mod core;

pub(crate) mod finish;
pub(crate) mod inspect;

pub(crate) mod admission;
mod batch_size;
mod dispatch;
pub(crate) mod orders;

pub(crate) mod monitor;
mod task_loop;
mod worker_thread;

pub(crate) mod worker;

#[cfg(test)]
mod test_core;
