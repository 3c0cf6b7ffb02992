//! Computations on sensor readings: calibration, quality flags, and values derived from temperature and
//! humidity.
//!
//! Pure functions. A worker applies them to readings that arrive, and `garenne readings recalibrate` to readings that
//! are stored.

pub mod calibration;
pub mod derive;
mod plausible;
pub mod quality;
mod stored_reading;
pub mod toml_file;

pub use calibration::Calibration;
pub use quality::{Flag, Quality};
pub use stored_reading::{NO_CALIBRATION, StoredReading};
