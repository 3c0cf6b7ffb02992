//! `garenne drill`: injects faults into a worker fleet and its broker, and accounts for every task at the end.
//!
//! The worker under test can be any program that reads `GARENNE_AMQP_URL` and `GARENNE_PREFIX` and writes one JSON
//! line with `task_id` to standard output for each task that it executes. Effects are counted in the file that
//! `DRILL_EFFECTS` names (one JSON line with `task_id` per effect), or in Postgres. With `--cuts` the workers reach the
//! broker through a proxy, which stalls and resets their connections.

pub mod cli;
mod conclude;
mod proxied_url;
mod report;
mod run;

pub use cli::DrillArgs;
pub use report::Report;
pub use run::run;
