//! Sensor kinds for Garenne workers: readings, foreign messages, windows, spectra, and alerts.
//!
//! Each kind has a module with a `register` function that adds its handler to a
//! [`WorkerBuilder`](garenne::WorkerBuilder). `window.analyze` reads stored readings through the trait
//! [`ReadingStore`](window::ReadingStore).

pub mod alert;
pub mod message;
mod name_length;
pub mod reading;
pub mod reading_row;
pub mod spectrum;
pub mod window;

pub use alert::AlertSettings;
