//! Computations on sensor readings: calibration, quality flags, and values derived from temperature and
//! humidity.
//!
//! Pure functions. A worker applies them to readings that arrive, and `garenne readings recalibrate` to readings that
//! are stored.

mod calibrated_reading;
pub mod calibration;
pub mod derive;
mod plausible;
pub mod quality;
pub mod toml_file;

pub use calibrated_reading::{CalibratedReading, NO_CALIBRATION};
pub use calibration::Calibration;
pub use quality::{Flag, Quality};
