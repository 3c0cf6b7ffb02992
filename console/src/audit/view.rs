//! The account on paper.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use super::verdict::{Audit, Totals};
use crate::table::grouped;

/// Writes one JSON line per finding.
///
/// # Errors
/// The file cannot be written.
pub fn write_findings(audit: &Audit<'_>, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for finding in &audit.findings {
        serde_json::to_writer(&mut file, finding)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// The sums as a table; `what` is what was sent, in the plural, and `done` what should become of each.
pub fn table(totals: &Totals, what: &str, done: &str) -> String {
    let Totals { sent, once, lost, doubled, dead, rerun, repeated } = *totals;
    let mark = |bad: u64| if bad == 0 { "" } else { "  <- broken promise" };
    let mut rows = vec![
        (format!("{what} acknowledged to their sender"), sent, ""),
        (format!("{done} once"), once, ""),
        ("dead letters".to_owned(), dead, if dead == 0 { "" } else { "  <- `garenne dead list` says why" }),
        ("lost".to_owned(), lost, mark(lost)),
        ("effects doubled".to_owned(), doubled, mark(doubled)),
        (
            "executed more than once".to_owned(),
            rerun,
            if rerun == 0 { "" } else { "  (allowed after a kill; the effect stays one)" },
        ),
    ];
    if repeated > 0 {
        rows.push(("acknowledged again, same id".to_owned(), repeated, ""));
    }
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    rows.iter()
        .map(|(name, count, remark)| format!("  {name:<width$}  {:>11}{remark}\n", grouped(*count)))
        .collect()
}
