//! How a program ends: exit codes, and errors that determine one.

pub use garenne_common::exit::{Exit, Failure, HasExit};
