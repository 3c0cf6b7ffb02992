//! The kinds of the stock worker.

pub mod bench;
pub mod reading;
pub mod spectrum;
pub mod window;
