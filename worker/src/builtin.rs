//! The kinds of the stock worker.

pub mod alert;
pub mod bench;
pub mod reading;
pub mod spectrum;
pub mod window;

pub use alert::AlertSettings;
