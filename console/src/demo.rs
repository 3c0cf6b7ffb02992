//! `garenne demo`: a gateway and workers process a recording while workers are stopped and killed, and every reading
//! is accounted for at the end.

pub mod cli;
mod conclude;
mod findings;
mod gateway;
mod mqtt;
mod recording;
mod run;
mod schedule;
mod screen;
mod story;
mod summary;

pub use cli::DemoArgs;
pub use run::run;
