//! How readings get into Garenne: the gateway that sensors speak to, and the programs that publish,
//! replay and simulate.
//!
//! Everything that promises something to a sender stands on [`outlet`]: a promise is given after the
//! broker confirmed that a queue has the task, and never before.

pub mod cli;
mod connect;
pub mod deliver;
pub mod gateway;
pub mod identity;
pub mod outlet;
mod progress;
pub mod publish;
pub mod replay;
pub mod settings;
pub mod simulate;
