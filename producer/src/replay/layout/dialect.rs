//! Detects the CSV dialect: delimiter and header line.

use crate::replay::{civil_time, fields, number};

const DELIMITERS: [char; 4] = [';', '\t', '|', ','];
/// Lines that are examined.
const EXAMINED_LINES: usize = 200;

/// Whether a line has nothing to read: it is blank or a rule of dashes, a comment, or the line `sep=;` that spreadsheets
/// write.
pub(in crate::replay) fn skipped(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('#')
        || !line.contains(char::is_alphanumeric)
        || line.len() <= 5 && line.starts_with("sep=")
}

/// The delimiter that splits most lines into the same number of columns, at least two.
pub(super) fn delimiter(lines: &[String]) -> char {
    let agreement = |delimiter: char| {
        let widths: Vec<usize> = lines
            .iter()
            .take(EXAMINED_LINES)
            .filter_map(|line| fields::split(line, delimiter))
            .map(|fields| fields.len())
            .collect();
        let usual =
            widths.iter().copied().max_by_key(|width| widths.iter().filter(|other| *other == width).count());
        match usual {
            Some(usual) if usual > 1 => widths.iter().filter(|width| **width == usual).count(),
            _ => 0,
        }
    };
    // On a tie the first of `DELIMITERS` wins: in a file with semicolons, a comma may be the decimal separator.
    let best = DELIMITERS.into_iter().rev().max_by_key(|delimiter| agreement(*delimiter));
    best.unwrap_or(',')
}

/// Whether the first row is a header: none of its cells is a number or a time.
pub(super) fn has_header(rows: &[Vec<String>]) -> bool {
    let says = |cell: &String| {
        number::notation(cell).is_some() || civil_time::civil(cell, Default::default()).is_some()
    };
    rows.first().is_some_and(|first| !first.iter().any(says))
}
