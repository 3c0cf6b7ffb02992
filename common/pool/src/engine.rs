//! Moves tasks through the pool. Each module imports only modules above it in this list.

mod counters;

pub(crate) mod core;

pub(crate) mod finish;
pub(crate) mod inspect;

pub(crate) mod admission;
mod batch_size;
pub(crate) mod orders;

pub(crate) mod monitor;
mod worker;
mod worker_thread;

mod task_loop;

pub(crate) mod worker_task;

#[cfg(test)]
mod tests;
