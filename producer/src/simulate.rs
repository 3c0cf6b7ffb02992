//! `simulate`: virtual sensors, with the faults that real ones have.

mod latency;
mod model;
mod run;

pub use model::{Faults, Model};
pub use run::{SimulateOptions, run};
