//! `replay`: a recording, sent again at the speed it was made or faster.

mod fields;
mod header;
mod instant;
mod layout;
mod lines;
pub mod mapping;
mod number;
mod pace;
mod rows;
mod run;
mod source;

pub use pace::{BadSpeed, Speed};
pub use run::{ReplayOptions, run};
