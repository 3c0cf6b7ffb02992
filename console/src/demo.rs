//! `garenne demo`: a gateway, a few workers, a recording, trouble on the way, and an account of every
//! reading at the end.

mod account;
pub mod cli;
mod counters;
mod findings;
mod fleet;
mod recording;
mod run;
mod schedule;
mod screen;
mod story;
mod summary;

pub use cli::DemoArgs;
pub use run::run;
