//! Detects the columns with the time.

use jiff::civil::Date;

use super::{Mapping, Rows};
use crate::replay::{
    civil_time::{CivilTime, DateOrder, civil, depends_on_order, time_of_day},
    number,
};

/// The columns with a row's time.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::replay) struct TimeColumns {
    pub(in crate::replay) indexes: Vec<usize>,
    pub(in crate::replay) notation: Notation,
    pub(in crate::replay) fraction: Option<Fraction>,
    /// The order of dates in [`Notation::Text`].
    pub(in crate::replay) order: DateOrder,
    /// Whether the dates of the sample exist in several orders.
    pub(in crate::replay) order_guessed: bool,
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
        let order = DateOrder::default();
        TimeColumns { indexes, notation: self, fraction: None, order, order_guessed: false }
    }
}

/// A column with the fraction of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::replay) struct Fraction {
    pub(in crate::replay) index: usize,
    /// 1000 for milliseconds.
    pub(in crate::replay) per_second: f64,
}

impl Fraction {
    /// The seconds that a cell means. `None` if it is not a part of one second.
    pub(in crate::replay) fn seconds(self, cell: &str) -> Option<f64> {
        let number = number::decimal(cell)?;
        (number >= 0.0 && number < self.per_second).then_some(number / self.per_second)
    }
}

/// Headings of columns with the fraction of the second, and their unit's number in a second.
const FRACTIONS: &[(&[&str], f64)] = &[
    (&["ms", "msec", "msecs", "millis", "millisecond", "milliseconds", "millisekunde", "millisekunden"], 1e3),
    (&["us", "µs", "μs", "usec", "micros", "microsecond", "microseconds", "mikrosekunden"], 1e6),
    (&["ns", "nsec", "nanos", "nanosecond", "nanoseconds", "nanosekunden"], 1e9),
    (
        &[
            "fraction",
            "frac",
            "second_fraction",
            "fraction_of_second",
            "fractional_seconds",
            "subsecond",
            "subseconds",
        ],
        1.0,
    ),
];

/// Headings of the parts of a time.
const YEAR: &[&str] = &["year", "yyyy", "yr", "jahr"];
const MONTH: &[&str] = &["month", "mon", "monat"];
const DAY: &[&str] = &["day", "tag"];
const HOUR: &[&str] = &["hour", "hours", "hr", "hh", "stunde"];
const MINUTE: &[&str] = &["minute", "minutes", "minuten"];
const SECOND: &[&str] = &["second", "seconds", "sec", "ss", "sekunde", "sekunden"];

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
    /// Such as `10.03.04`.
    DateOrClock,
    Number,
    Other,
}

/// The contents of all columns. One that may be dates or times of day has times of day if another one has dates.
fn contents(rows: &Rows) -> Vec<Content> {
    let mut contents: Vec<Content> = (0..rows.headings.len()).map(|index| content(rows, index)).collect();
    let mut has_date = contents.contains(&Content::Date);
    for content in contents.iter_mut().filter(|content| **content == Content::DateOrClock) {
        *content = if has_date { Content::Clock } else { Content::Date };
        has_date = true;
    }
    contents
}

fn content(rows: &Rows, index: usize) -> Content {
    let mut contents: Vec<Content> = rows.cells(index).take(500).map(content_of).collect();
    let certain = [Content::Date, Content::Clock].into_iter().find(|content| contents.contains(content));
    if let Some(certain) = certain {
        contents.iter_mut().filter(|content| **content == Content::DateOrClock).for_each(|it| *it = certain);
    }
    let count = |content: Content| contents.iter().filter(|other| **other == content).count();
    // Up to a quarter of the cells may be invalid.
    let usual = contents.iter().copied().find(|content| count(*content) * 4 >= contents.len() * 3);
    usual.unwrap_or(Content::Other)
}

fn content_of(cell: &str) -> Content {
    let compact_date = cell.len() == 8 && cell.starts_with(['1', '2']);
    let is_number = number::notation(cell).is_some();
    if is_number && !compact_date {
        return Content::Number;
    }
    let orders = [DateOrder::Dmy, DateOrder::Mdy, DateOrder::Ymd];
    match orders.into_iter().find_map(|order| civil(cell, order)) {
        Some(CivilTime { date: Some(_), clock: Some(_), .. }) => Content::Full,
        Some(CivilTime { date: Some(_), .. }) if time_of_day(cell).is_some() => Content::DateOrClock,
        Some(CivilTime { date: Some(_), .. }) => Content::Date,
        Some(_) => Content::Clock,
        None if is_number => Content::Number,
        None => Content::Other,
    }
}

/// Finds the time columns. The order of their dates is decided later, if the mapping does not give it.
pub(super) fn find(rows: &Rows, mapping: &Mapping, notes: &mut Vec<String>) -> Result<TimeColumns, String> {
    let contents = contents(rows);
    let mut columns = columns(rows, mapping, &contents)?;
    columns.fraction = fraction(rows, mapping, &contents, &mut columns.indexes, columns.notation, notes)?;
    columns.order = mapping.date_order.unwrap_or_default();
    Ok(columns)
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
    let part = |names: &[&str]| rows.named(names).filter(|&index| contents[index] == Content::Number);
    if let (Some(year), Some(month), Some(day)) = (part(YEAR), part(MONTH), part(DAY)) {
        let hour = part(HOUR);
        // `min` may also be a minimum.
        let min = part(&["min"]).filter(|&min| hour.is_some_and(|hour| min == hour + 1));
        let clock = [hour, part(MINUTE).or(min), part(SECOND)].into_iter().map_while(|part| part);
        return Ok(Notation::Parts.of([year, month, day].into_iter().chain(clock).collect()));
    }
    let plausible =
        |index: usize| rows.cells(index).filter_map(number::decimal).take(20).all(|number| number >= 1e8);
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

/// Finds the column with the fraction of the second. One of the time columns that the user gave is removed from `time`.
fn fraction(
    rows: &Rows,
    mapping: &Mapping,
    contents: &[Content],
    time: &mut Vec<usize>,
    notation: Notation,
    notes: &mut Vec<String>,
) -> Result<Option<Fraction>, String> {
    let of = |index: usize| {
        let heading = rows.heading(index);
        let unit = FRACTIONS.iter().find(|(names, _)| names.contains(&heading.as_str()));
        unit.map(|(_, per_second)| Fraction { index, per_second: *per_second })
    };
    if let Some(heading) = mapping.time_fraction.as_deref() {
        if heading == "none" {
            return Ok(None);
        }
        let fraction = of(rows.exactly(heading)?);
        return fraction.map(Some).ok_or_else(|| {
            format!("the heading of the time fraction {heading:?} does not name ms, us, ns or fraction")
        });
    }
    let is_fraction = |index: usize| {
        let in_range = |fraction: &Fraction| rows.cells(index).all(|cell| fraction.seconds(cell).is_some());
        of(index).filter(|_| contents[index] == Content::Number).filter(in_range)
    };
    if !mapping.time.is_empty() {
        let given = time.iter().copied().find_map(is_fraction);
        let given = given.filter(|_| time.len() > 1 && mapping.time_format.is_none());
        time.retain(|&index| given.is_none_or(|fraction| fraction.index != index));
        return Ok(given);
    }
    let last = time.iter().copied().max().unwrap_or_default();
    let has_fraction = rows.cells(last).any(|cell| match notation {
        Notation::Text => civil(cell, DateOrder::Dmy)
            .and_then(|civil| civil.clock)
            .is_some_and(|clock| clock.subsec_nanos() != 0),
        Notation::Epoch | Notation::Parts => {
            number::decimal(cell).is_some_and(|number| number.fract() != 0.0)
        }
    });
    // A column that is called ms may also be a duration: the only value, or far from the time.
    let others = |index: usize| {
        (0..contents.len())
            .any(|other| other != index && !time.contains(&other) && contents[other] == Content::Number)
    };
    let found = (0..contents.len())
        .filter(|index| !has_fraction && others(*index) && !time.contains(index))
        .filter(|&index| notation == Notation::Parts || index == last + 1)
        .find_map(is_fraction);
    if let Some(fraction) = found {
        let heading = &rows.headings[fraction.index];
        notes.push(format!(
            "column {heading:?} is read as the fraction of the second (--time-fraction none changes this)"
        ));
    }
    Ok(found)
}

/// What the dates of a column tell about their order.
pub(super) struct DateEvidence {
    /// In the order of preference.
    orders: [DatesInOrder; 3],
    /// The first date that depends on the order.
    example: Option<String>,
}

/// The dates as they are in one order.
struct DatesInOrder {
    order: DateOrder,
    /// Those that exist.
    dates: u64,
    /// The sum of days between consecutive ones.
    steps: u64,
    last: Option<Date>,
}

impl DateEvidence {
    /// For a file with this delimiter.
    pub(super) fn new(delimiter: char) -> Self {
        let orders = match delimiter {
            ',' => [DateOrder::Mdy, DateOrder::Dmy, DateOrder::Ymd],
            _ => [DateOrder::Dmy, DateOrder::Mdy, DateOrder::Ymd],
        };
        let orders = orders.map(|order| DatesInOrder { order, dates: 0, steps: 0, last: None });
        Self { orders, example: None }
    }

    /// Takes the next cell.
    pub(super) fn add(&mut self, cell: &str) {
        if !depends_on_order(cell) {
            return;
        }
        for in_order in &mut self.orders {
            let Some(date) = civil(cell, in_order.order).and_then(|civil| civil.date) else { continue };
            self.example.get_or_insert_with(|| cell.to_owned());
            in_order.dates += 1;
            let step = in_order.last.replace(date).map_or(0, |last| (date - last).get_days().unsigned_abs());
            in_order.steps += u64::from(step);
        }
    }

    /// The order in which most of the dates exist, else the one with the smallest steps in time. Also whether it is a
    /// guess.
    pub(super) fn order(&self, notes: &mut Vec<String>) -> (DateOrder, bool) {
        let Some(example) = &self.example else { return (DateOrder::default(), false) };
        let most = self.orders.iter().map(|it| it.dates).max().unwrap_or_default();
        let possible = || self.orders.iter().filter(|it| it.dates == most);
        let chosen = possible().min_by_key(|it| it.steps).map_or(DateOrder::default(), |it| it.order);
        let guessed = possible().count() > 1;
        if guessed {
            let date = civil(example, chosen).and_then(|civil| civil.date);
            let date = date.map_or_else(String::new, |date| format!(": {example:?} is {date}"));
            let words = chosen.words();
            notes.push(format!("dates are ambiguous and are read {words}{date} (--date-order decides)"));
        }
        (chosen, guessed)
    }
}
