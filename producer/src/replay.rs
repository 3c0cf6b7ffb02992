//! `replay`: sends the readings of a recording, at the recorded speed or another.

mod civil_time;
mod fields;
mod heading;
mod layout;
mod line_reader;
pub mod mapping;
mod number;
mod pace;
mod recording;
mod row;
mod run;

pub use pace::{BadSpeed, Speed};
pub use run::{ReplayOptions, run};
