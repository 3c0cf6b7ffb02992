//! Tables for terminals: aligned columns, no borders, one line per row.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use garenne_common::text::printable;
use indicatif::HumanCount;

/// Formats rows under their headings. A heading that begins with `>` is right-aligned, as in format strings. Every line
/// ends with a line feed. Cells are escaped.
pub fn lay_out<R: IntoIterator<Item = String>>(
    headings: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.into_iter().map(|cell| printable(&cell).into_owned()));
    }
    for (heading, cells) in headings.iter().zip(table.column_iter_mut()) {
        cells.set_padding((0, 2));
        if heading.starts_with('>') {
            cells.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// At most `width` characters; a cut text ends with an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// A duration in one unit, with a decimal below 10 s: `850ms`, `4.2s`, `3m`, `5h`, `2d`.
pub fn duration(milliseconds: u64) -> String {
    match milliseconds {
        ms @ 0..1_000 => format!("{ms}ms"),
        ms @ 1_000..10_000 => format!("{:.1}s", ms as f64 / 1e3),
        ms @ 10_000..120_000 => format!("{}s", ms / 1_000),
        ms @ 120_000..7_200_000 => format!("{}m", ms / 60_000),
        ms @ 7_200_000..172_800_000 => format!("{}h", ms / 3_600_000),
        ms => format!("{}d", ms / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned() {
        let text = lay_out(
            &["lane", ">ready"],
            [vec!["fast".to_owned(), grouped(1_234)], vec!["slow".to_owned(), grouped(7)]],
        );
        assert_eq!(text, "lane  ready\nfast  1,234\nslow      7\n");
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let text = lay_out(&["id"], [["a\nb\u{1b}[2J\u{202e}".to_owned()]]);
        assert_eq!(text, "id\na\\nb\\u{1b}[2J\\u{202e}\n");
    }

    #[test]
    fn numbers_texts_and_durations_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([cut("abc", 3), cut("abcd", 3), cut("äöüß", 3)], ["abc", "ab…", "äö…"]);
        assert_eq!(
            [999, 4_200, 61_000, 180_000, 7_200_000, 200_000_000].map(duration),
            ["999ms", "4.2s", "61s", "3m", "2h", "2d"]
        );
    }
}
