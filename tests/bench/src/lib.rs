//! The common parts of all benchmarks: result rows, ratios of paired runs, the machine's description, and the resource
//! usage of processes.

mod machine;
mod options;
mod ratio;
mod rows;
mod usage;

pub use self::{
    machine::Machine,
    options::{flag, number, option},
    ratio::Ratio,
    rows::Rows,
    usage::Usage,
};
