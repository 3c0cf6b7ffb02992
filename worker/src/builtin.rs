//! What the stock worker can do.

pub mod reading;
