//! `simulate`: virtual sensors with typical sensor faults.

mod latency_histogram;
mod run;
mod sensor_model;

pub use run::{SimulateOptions, run};
pub use sensor_model::{Faults, SensorModel};
