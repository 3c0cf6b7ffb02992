//! How a process stops: modes, signals, the receipt.
//!
//! Libraries never catch signals. A binary's `main` converts signals into [`signal::Command`]s, the admin port sends
//! into the same channel, and the code that runs the work receives them.

pub mod mode;
pub mod receipt;
pub mod signal;
pub mod tally;

pub use mode::Mode;
pub use receipt::Receipt;
pub use signal::{Command, stop_requested};
pub use tally::Tally;
