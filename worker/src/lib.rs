//! placeholder

pub mod builtin;
