//! The totals of an audit as a table.

use garenne_chaos::audit::Totals;

use crate::table::grouped;

/// One line per total. `what` names the tasks in the plural, and `done` says what should happen to each once.
pub(crate) fn totals_table(totals: &Totals, what: &str, done: &str) -> String {
    let Totals { sent, once, lost, doubled, dead, rerun, repeated } = *totals;
    let mark = |bad: u64| if bad == 0 { "" } else { "  <- must be 0" };
    let mut rows = vec![
        (format!("{what} acknowledged to their sender"), sent, ""),
        (format!("{done} once"), once, ""),
        ("dead letters".to_owned(), dead, if dead == 0 { "" } else { "  <- `garenne dead list` says why" }),
        ("lost".to_owned(), lost, mark(lost)),
        ("effects doubled".to_owned(), doubled, mark(doubled)),
        (
            "executed more than once".to_owned(),
            rerun,
            if rerun == 0 { "" } else { "  (allowed after a crash; the effect must happen once)" },
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
