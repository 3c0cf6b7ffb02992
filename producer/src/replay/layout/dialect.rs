//! Delimiter, decimal mark, and whether there is a heading.

use crate::replay::{fields, number};

const DELIMITERS: [char; 4] = [';', '\t', '|', ','];
/// How many lines decide.
const LOOKED_AT: usize = 200;

/// Blank lines and comments are no rows.
pub(in crate::replay) fn skipped(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// The delimiter that cuts most lines into the same number of columns, and into more than one.
pub(super) fn delimiter(lines: &[&str]) -> char {
    let agreement = |delimiter: char| {
        let widths: Vec<usize> = lines
            .iter()
            .take(LOOKED_AT)
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
    // Of equals the first wins: a comma may be a decimal mark beside a semicolon, not the reverse.
    let best = DELIMITERS.into_iter().rev().max_by_key(|delimiter| agreement(*delimiter));
    best.unwrap_or(',')
}

/// Whether some column writes numbers with a comma and never with a point.
pub(super) fn decimal_comma(rows: &[Vec<String>]) -> bool {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..width).any(|index| {
        let cells = || rows.iter().skip(1).filter_map(|row| row.get(index)).map(|cell| cell.trim());
        let fraction = |mark: char| {
            cells().any(|cell| cell.contains(mark) && number::parse(cell, mark == ',').is_some())
        };
        fraction(',') && !fraction('.')
    })
}

/// A heading has no number in it, and something below it has.
pub(super) fn has_header(rows: &[Vec<String>], decimal_comma: bool) -> bool {
    let says = |cell: &String| {
        number::parse(cell, decimal_comma).is_some()
            || crate::replay::civil_time::civil(cell, Default::default()).is_some()
    };
    rows.first().is_some_and(|first| !first.iter().any(says))
}
