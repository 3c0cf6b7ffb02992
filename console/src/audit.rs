//! Was everything that was acknowledged to its sender done, once?
//!
//! Three independent witnesses: the sender's receipts say what must be there, the workers' execution
//! logs (append-only, so that nothing tidies them up) say what was run how often, and the store says
//! what took effect.

mod evidence;
mod store;
mod tail;
mod verdict;
mod view;

pub use evidence::{Evidence, Execution};
pub use store::{Store, StoreError, table};
pub use tail::{Expected, Tail};
pub use verdict::{Audit, Finding, Totals, Verdict};
pub use view::{table as totals_table, write_findings};
