//! What every benchmark shares: the rows they end in, ratios of what ran in turns, the machine, and what a
//! process costs.

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
