//! Detects the columns with the time.

use super::{Mapping, Rows};
use crate::replay::{
    civil_time::{CivilTime, DateOrder, civil, date_numbers, epoch},
    number,
};

/// The columns with a row's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) enum TimeColumns {
    /// Text in these columns, joined by a space.
    Text(Vec<usize>),
    /// A Unix time.
    Epoch(usize),
    /// Year, month and day, and optionally hour, minute and second.
    GatewayContext(Vec<usize>),
}

impl TimeColumns {
    pub(in crate::replay) fn uses(&self, index: usize) -> bool {
        match self {
            Self::Text(indexes) | Self::GatewayContext(indexes) => indexes.contains(&index),
            Self::Epoch(at) => *at == index,
        }
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

impl Content {
    const ALL: [Self; 5] = [Self::Full, Self::Date, Self::Clock, Self::Number, Self::Other];
}

fn content(rows: &Rows, index: usize, decimal_comma: bool) -> Content {
    let mut counts = [0_usize; Content::ALL.len()];
    for cell in rows.cells(index).take(500) {
        counts[content_of(cell, decimal_comma) as usize] += 1;
    }
    let all: usize = counts.iter().sum();
    // Up to a quarter of the cells may be invalid.
    let usual = Content::ALL.into_iter().find(|kind| counts[*kind as usize] * 4 >= all * 3);
    if all == 0 { Content::Other } else { usual.unwrap_or(Content::Other) }
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
        TimeColumns::Text(indexes) if mapping.time_format.is_none() => {
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
                TimeColumns::Epoch(only)
            }
            _ => TimeColumns::Text(indexes),
        });
    }
    let all = |content: Content| (0..contents.len()).filter(move |&index| contents[index] == content);
    let rank = |index: usize| {
        let heading = rows.heading(index);
        TIME_WORDS.iter().position(|name| heading.contains(name)).unwrap_or(TIME_WORDS.len())
    };
    let best = |content: Content| all(content).min_by_key(|&index| rank(index));
    if let Some(full) = best(Content::Full) {
        return Ok(TimeColumns::Text(vec![full]));
    }
    if let (Some(date), Some(clock)) = (best(Content::Date), best(Content::Clock)) {
        return Ok(TimeColumns::Text(vec![date, clock]));
    }
    let part = |name: &str| rows.named(&[name]).filter(|&index| contents[index] == Content::Number);
    if let (Some(year), Some(month), Some(day)) = (part("year"), part("month"), part("day")) {
        let clock = ["hour", "minute", "second"].into_iter().map_while(part);
        return Ok(TimeColumns::GatewayContext([year, month, day].into_iter().chain(clock).collect()));
    }
    let plausible = |index: usize| {
        rows.cells(index).filter_map(|cell| number::parse(cell, false)).take(20).all(|number| number >= 1e8)
    };
    if let Some(epoch) = all(Content::Number)
        .filter(|&index| rank(index) < TIME_WORDS.len() && plausible(index))
        .min_by_key(|&i| rank(i))
    {
        return Ok(TimeColumns::Epoch(epoch));
    }
    if let Some(date) = best(Content::Date) {
        return Ok(TimeColumns::Text(vec![date]));
    }
    Err(format!(
        "no time column was found; the columns are {}; give it with --time-column and its format with --time-format",
        rows.headings.join(", ")
    ))
}

/// Whether the day or the month comes first: a number above 12 decides, else the order with the smaller steps in time.
fn order(rows: &Rows, index: usize, delimiter: char, notes: &mut Vec<String>) -> DateOrder {
    let mut first_over_12 = false;
    let mut second_over_12 = false;
    let mut ambiguous = false;
    for cell in rows.cells(index) {
        let date = cell.split([' ', 'T', '_']).next().unwrap_or_default();
        let Some([first, second, _]) = date_numbers(date) else { continue };
        if first > 31 || date.contains(char::is_alphabetic) {
            return DateOrder::default();
        }
        ambiguous = true;
        first_over_12 |= first > 12;
        second_over_12 |= second > 12;
    }
    if !ambiguous || first_over_12 != second_over_12 {
        return if second_over_12 { DateOrder::Mdy } else { DateOrder::Dmy };
    }
    let total_steps = |order: DateOrder| {
        let dates: Vec<_> =
            rows.cells(index).filter_map(|cell| civil(cell, order)).filter_map(|civil| civil.date).collect();
        let steps = dates.windows(2);
        // The sum of days between consecutive rows; the right order has the smaller one.
        steps.map(|pair| (pair[1] - pair[0]).whole_days().unsigned_abs()).sum::<u64>()
    };
    let (dmy, mdy) = (total_steps(DateOrder::Dmy), total_steps(DateOrder::Mdy));
    let order = match dmy.cmp(&mdy) {
        std::cmp::Ordering::Less => DateOrder::Dmy,
        std::cmp::Ordering::Greater => DateOrder::Mdy,
        std::cmp::Ordering::Equal if delimiter == ',' => DateOrder::Mdy,
        std::cmp::Ordering::Equal => DateOrder::Dmy,
    };
    let words = if order == DateOrder::Dmy { "day first" } else { "month first" };
    notes.push(format!("dates are ambiguous and are read {words} (--time-format decides)"));
    order
}

/// Converts a cell with a Unix time.
pub(in crate::replay) fn from_epoch(
    text: &str,
    decimal_comma: bool,
) -> Option<garenne_protocol::sensor::Timestamp> {
    number::parse(text, decimal_comma).and_then(epoch)
}
