//! `garenne drill`: trouble on purpose, against a broker and a worker of one's own choosing, and an
//! account of every task at the end.
//!
//! What a worker must do to be drilled: read `GARENNE_AMQP_URL` and `GARENNE_PREFIX`, and write one
//! JSON line with `task_id` to standard output for each task it runs. That log is append-only, so that
//! nothing tidies it up. Effects are counted where they are: in the file that `DRILL_EFFECTS`
//! names (one JSON line with `task_id` per effect), or in Postgres. With `--cuts` the URL leads through
//! a proxy of the drill's own, which is the network that gets cut.

mod account;
pub mod cli;
mod crew;
mod effects;
mod plan;
mod proxy;
mod publish;
mod report;
mod run;
mod timeline;
mod trouble;

pub use cli::DrillArgs;
pub use plan::{Act, Counts, Plan, Step};
pub use proxy::Proxy;
pub use report::Report;
pub use run::run;
