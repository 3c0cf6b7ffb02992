//! Detects the columns with the time.

use jiff::civil::Date;

use super::{Mapping, Rows};
use crate::replay::{
    civil_time::{CivilTime, DateOrder, civil, depends_on_order},
    number,
};

/// The columns with a row's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) struct TimeColumns {
    pub(in crate::replay) indexes: Vec<usize>,
    pub(in crate::replay) notation: Notation,
}

/// How the columns of a time are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) enum Notation {
    /// Text, joined by a space.
    Text,
    /// A Unix time.
    Epoch,
    /// Year, month and day, and optionally hour, minute and second.
    Parts,
}

impl Notation {
    fn of(self, indexes: Vec<usize>) -> TimeColumns {
        TimeColumns { indexes, notation: self }
    }
}

/// Words in the headings of time columns, in order of preference.
const TIME_WORDS: &[&str] = &[
    "timestamp",
    "datetime",
    "date_time",
    "time_utc",
    "utc",
    "time",
    "date",
    "ts",
    "epoch",
    "recorded",
    "measured",
    "observed",
    "created",
    "zeit",
    "datum",
    "fecha",
    "data",
];

/// The content of most cells of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Full,
    Date,
    Clock,
    Number,
    Other,
}

fn content(rows: &Rows, index: usize, decimal_comma: bool) -> Content {
    let contents: Vec<Content> =
        rows.cells(index).take(500).map(|cell| content_of(cell, decimal_comma)).collect();
    let count = |content: Content| contents.iter().filter(|other| **other == content).count();
    // Up to a quarter of the cells may be invalid.
    let usual = contents.iter().copied().find(|content| count(*content) * 4 >= contents.len() * 3);
    usual.unwrap_or(Content::Other)
}

fn content_of(cell: &str, decimal_comma: bool) -> Content {
    let compact_date = cell.len() == 8 && cell.starts_with(['1', '2']);
    if number::parse(cell, decimal_comma).is_some() && !compact_date {
        return Content::Number;
    }
    match civil(cell, DateOrder::Dmy).or_else(|| civil(cell, DateOrder::Mdy)) {
        Some(CivilTime { date: Some(_), clock: Some(_), .. }) => Content::Full,
        Some(CivilTime { date: Some(_), .. }) => Content::Date,
        Some(_) => Content::Clock,
        None if number::parse(cell, decimal_comma).is_some() => Content::Number,
        None => Content::Other,
    }
}

/// Finds the time columns and the order of their dates.
pub(super) fn find(
    rows: &Rows,
    mapping: &Mapping,
    delimiter: char,
    decimal_comma: bool,
    notes: &mut Vec<String>,
) -> Result<(TimeColumns, DateOrder), String> {
    let contents: Vec<Content> =
        (0..rows.headings.len()).map(|index| content(rows, index, decimal_comma)).collect();
    let columns = columns(rows, mapping, &contents)?;
    let order = match &columns {
        TimeColumns { indexes, notation: Notation::Text } if mapping.time_format.is_none() => {
            order(rows, indexes[0], delimiter, notes)
        }
        _ => DateOrder::default(),
    };
    Ok((columns, order))
}

fn columns(rows: &Rows, mapping: &Mapping, contents: &[Content]) -> Result<TimeColumns, String> {
    if !mapping.time.is_empty() {
        let indexes: Vec<usize> =
            mapping.time.iter().map(|heading| rows.exactly(heading)).collect::<Result<_, _>>()?;
        return Ok(match indexes[..] {
            [only] if contents[only] == Content::Number && mapping.time_format.is_none() => {
                Notation::Epoch.of(indexes)
            }
            _ => Notation::Text.of(indexes),
        });
    }
    let all = |content: Content| (0..contents.len()).filter(move |&index| contents[index] == content);
    let rank = |index: usize| {
        let heading = rows.heading(index);
        TIME_WORDS.iter().position(|name| heading.contains(name)).unwrap_or(TIME_WORDS.len())
    };
    let best = |content: Content| all(content).min_by_key(|&index| rank(index));
    if let Some(full) = best(Content::Full) {
        return Ok(Notation::Text.of(vec![full]));
    }
    if let (Some(date), Some(clock)) = (best(Content::Date), best(Content::Clock)) {
        return Ok(Notation::Text.of(vec![date, clock]));
    }
    let part = |name: &str| rows.named(&[name]).filter(|&index| contents[index] == Content::Number);
    if let (Some(year), Some(month), Some(day)) = (part("year"), part("month"), part("day")) {
        let clock = ["hour", "minute", "second"].into_iter().map_while(part);
        return Ok(Notation::Parts.of([year, month, day].into_iter().chain(clock).collect()));
    }
    let plausible = |index: usize| {
        rows.cells(index).filter_map(|cell| number::parse(cell, false)).take(20).all(|number| number >= 1e8)
    };
    if let Some(epoch) = all(Content::Number)
        .filter(|&index| rank(index) < TIME_WORDS.len() && plausible(index))
        .min_by_key(|&i| rank(i))
    {
        return Ok(Notation::Epoch.of(vec![epoch]));
    }
    if let Some(date) = best(Content::Date) {
        return Ok(Notation::Text.of(vec![date]));
    }
    Err(format!(
        "no time column was found; the columns are {}; give it with --time-column and its format with --time-format",
        rows.headings.join(", ")
    ))
}

/// Whether the day or the month comes first: the order in which more of the dates exist, else the one with the smaller
/// steps in time.
fn order(rows: &Rows, index: usize, delimiter: char, notes: &mut Vec<String>) -> DateOrder {
    if !rows.cells(index).any(depends_on_order) {
        return DateOrder::default();
    }
    let dates = |order: DateOrder| -> Vec<_> {
        rows.cells(index).filter_map(|cell| civil(cell, order)?.date).collect()
    };
    let (dmy, mdy) = (dates(DateOrder::Dmy), dates(DateOrder::Mdy));
    if dmy.len() != mdy.len() {
        return if dmy.len() > mdy.len() { DateOrder::Dmy } else { DateOrder::Mdy };
    }
    // The sum of days between consecutive rows.
    let total_steps = |dates: &[Date]| -> u64 {
        let steps = dates.windows(2).map(|pair| pair[1] - pair[0]);
        steps.map(|step| u64::from(step.get_days().unsigned_abs())).sum()
    };
    let (dmy, mdy) = (total_steps(&dmy), total_steps(&mdy));
    let month_first = dmy > mdy || dmy == mdy && delimiter == ',';
    let (order, words) =
        if month_first { (DateOrder::Mdy, "month first") } else { (DateOrder::Dmy, "day first") };
    notes.push(format!("dates are ambiguous and are read {words} (--time-format decides)"));
    order
}
