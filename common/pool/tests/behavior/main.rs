//! The behavior of the pool through its public API.

mod admission;
mod cancellation;
mod context;
mod elastic;
mod groups;
mod multi_worker;
mod observer;
mod panics;
mod run_all;
mod shutdown;
mod snapshots;
mod stuck;
mod test_pool;
mod user_panics;
