//! Checks that every task that was acknowledged to its sender took effect once.
//!
//! The evidence has three independent sources: the sender's receipts list the tasks, the workers' execution logs count
//! the executions, and a file or database counts the effects. Execution logs are append-only: a worker cannot remove
//! what it wrote.

mod account;
mod effects;
mod lines;
mod store;
mod verdict;

pub use account::Account;
pub use effects::{EFFECTS_FILE, EffectSource, count_effects};
pub use lines::{Execution, Expected, ExpectedReading, Tail};
pub use store::Store;
pub use verdict::{Audit, Finding, Totals, Verdict};
