//! Converts InfluxDB's line protocol into readings, so that Telegraf can write to the gateway.

use std::sync::Arc;

use garenne_protocol::sensor::{
    BadField, Fault, KeyedValues, Limits, Reading, Record, TimeUnit, Timestamp, Unit, lenient,
    parse::check_unit,
};
use influxdb_line_protocol::{Error, FieldValue, ParsedLine, parse_lines, split_lines};

use crate::{
    refusal::short,
    series_name::{check_keys, check_text, fit, labels},
};

/// Tags that name the device, in order of preference.
const DEVICE_TAGS: [&str; 8] =
    ["device", "device_id", "sensor", "sensor_id", "station", "node", "host", "hostname"];
/// Longest line, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Longest measurement with its tags, and longest field name, in bytes. Each reading of the line copies and hashes
/// them.
const MAX_SERIES: usize = 4096;
/// How often on average each byte of a body is read again, because what looked like a text with line breaks is none. Beyond
/// it, a text with line breaks counts as lines.
const MOST_READ_AGAIN: usize = 4;
/// Longest name of a field in an error, in bytes.
const LONGEST_SHOWN: usize = 64;

/// The unit of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision(TimeUnit);

impl Precision {
    /// Parses the parameter `precision` of both API versions; `None` for an unknown one. The default is nanoseconds.
    pub fn parse(word: Option<&str>) -> Option<Self> {
        Some(Self(match word {
            None | Some("" | "ns" | "n") => TimeUnit::Nanoseconds,
            Some("us" | "u" | "µ") => TimeUnit::Microseconds,
            Some("ms") => TimeUnit::Milliseconds,
            Some("s") => TimeUnit::Seconds,
            Some("m") => TimeUnit::Minutes,
            Some("h") => TimeUnit::Hours,
            Some(_) => return None,
        }))
    }

    /// Its symbol, the same for all words of a unit.
    pub(super) fn symbol(self) -> &'static str {
        self.0.symbol()
    }
}

/// The readings of a line, and the fields that are left out.
#[derive(Debug, Default)]
pub struct LineReadings {
    /// Readings of fields that are numbers.
    pub records: Vec<Record>,
    /// Why each of the other numbers is left out.
    pub left_out: Vec<BadField>,
}

/// The lines of a body, each with its number from 1. Bytes that are not UTF-8 are marked, so that only their lines are
/// refused.
pub fn lines_of(body: &mut [u8]) -> impl Iterator<Item = (u64, Result<&str, BadField>)> {
    let end = lenient::end_before_nuls(body);
    let body = &mut body[..end];
    let is_marked = str::from_utf8(body).is_err();
    if is_marked {
        lenient::mark_not_utf8(body);
    }
    let text = str::from_utf8(body).unwrap_or_default();
    let lines = Lines { rest: Some(text), next: 1, budget: text.len().saturating_mul(MOST_READ_AGAIN) };
    lines.map(move |(number, line)| {
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        let bad = line.find(lenient::BAD_BYTE).filter(|_| is_marked);
        (number, bad.map_or(Ok(line), |at| Err(not_utf8(at))))
    })
}

/// The lines of a text. One has line breaks if a text of a field has some.
struct Lines<'b> {
    rest: Option<&'b str>,
    next: u64,
    /// How many bytes may still be read in vain.
    budget: usize,
}

impl<'b> Iterator for Lines<'b> {
    type Item = (u64, &'b str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest?;
        let first = rest.split_once('\n').map_or(rest, |(first, _)| first);
        let mut line = if self.budget == 0 { first } else { split_lines(rest).next().unwrap_or(rest) };
        // Otherwise a quote that is not closed, or is in a comment, and a backslash at the end of a line, would take the
        // lines behind them.
        if line.len() > first.len() && (self.budget < line.len() || !is_record(line)) {
            self.budget = self.budget.saturating_sub(line.len());
            line = first;
        }
        self.rest = rest.get(line.len() + 1..);
        let number = self.next;
        self.next += 1 + line.bytes().filter(|byte| *byte == b'\n').count() as u64;
        Some((number, line))
    }
}

/// Whether a text is one record, whose line breaks are in texts of fields.
fn is_record(text: &str) -> bool {
    if text.trim_start().starts_with('#') || check_line(text, usize::MAX).is_err() {
        return false;
    }
    let mut repaired = None;
    let Some(Ok(ParsedLine { series, field_set, .. })) = parse(text, &mut repaired) else { return false };
    let tags = series.tag_set.iter().flatten().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    let fields = field_set.iter().map(|(name, _)| name.as_str());
    let mut names = tags.chain(fields).chain([series.measurement.as_str()]);
    names.all(|name| !name.contains('\n'))
}

/// Converts every numeric and boolean field of a line, without its line ending, into a reading. Text fields are ignored.
/// Comments and blank lines have none. Fails if the line is invalid, its time is out of bounds, it has more readings
/// than `limits` allow, or all of its fields are left out.
pub fn line_readings(
    line: &str,
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
) -> Result<LineReadings, BadField> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    check_line(line, limits.records)?;
    let mut repaired = None;
    let Some(parsed) = parse(line, &mut repaired) else { return Ok(LineReadings::default()) };
    check_commas(line.trim_start())?;
    let line = parsed.map_err(|error| {
        Fault::Malformed.in_field("line", format!("not line protocol: {}", short(&error)))
    })?;
    check_series(&line)?;
    let option = |unit: TimeUnit| format!("precision={}", unit.symbol());
    let time = line.timestamp.map(|ticks| limits.unix_time("timestamp", (ticks, precision.0), now, option));
    let mut readings = fields_of(&line, time.transpose()?.unwrap_or(now));
    if readings.records.len() > limits.records {
        let message = format!("more than {} readings", limits.records);
        return Err(Fault::TooManyRecords.in_field("body", message));
    }
    match readings.left_out.pop() {
        Some(only) if readings.records.is_empty() && readings.left_out.is_empty() => Err(only),
        Some(_) if readings.records.is_empty() => Err(readings.left_out.swap_remove(0)),
        last => {
            readings.left_out.extend(last);
            Ok(readings)
        }
    }
}

/// Parses a line, and once more with marked numbers, which are kept in `repaired`, if that fails. `None` for a comment or a
/// blank line.
fn parse<'l>(line: &'l str, repaired: &'l mut Option<String>) -> Option<Result<ParsedLine<'l>, Error>> {
    match parse_lines(line).next()? {
        Ok(parsed) => Some(Ok(parsed)),
        Err(error) => match with_marked_numbers(line) {
            Some(text) => parse_lines(repaired.insert(text)).next(),
            None => Some(Err(error)),
        },
    }
}

/// As [`line_readings`], for the bytes of a line.
pub(super) fn bytes_readings(
    line: &[u8],
    precision: Precision,
    now: Timestamp,
    limits: &Limits,
) -> Result<LineReadings, BadField> {
    let text = str::from_utf8(line).map_err(|error| not_utf8(error.valid_up_to()))?;
    line_readings(text, precision, now, limits)
}

fn not_utf8(from: usize) -> BadField {
    Fault::Malformed.in_field("line", format!("not UTF-8 from byte {from} on"))
}

/// The line with a number beyond a double in place of `NaN`, `inf` and the like and of integers beyond 64 bits, which the
/// parser refuses together with the line. `None` if it has none.
fn with_marked_numbers(line: &str) -> Option<String> {
    let bytes = line.as_bytes();
    // Behind the measurement and its tags.
    let mut at = unescaped(bytes, 0, b" ")?;
    let (mut text, mut is_marked) = (line[..at].to_owned(), false);
    while let Some(equals) = unescaped(bytes, at, b"=") {
        let value = equals + 1;
        let end = end_of_value(bytes, value);
        text.push_str(&line[at..value]);
        let word = &bytes[value..end];
        let is_beyond = lenient::is_not_finite(word) || is_beyond_64_bits(word);
        text.push_str(if is_beyond { "9e999" } else { &line[value..end] });
        is_marked |= is_beyond;
        at = end;
    }
    text.push_str(&line[at..]);
    is_marked.then_some(text)
}

/// Refuses a comma without a field, which the parser takes for a part of the next field's name.
fn check_commas(line: &str) -> Result<(), BadField> {
    let bytes = line.as_bytes();
    let Some(mut at) = unescaped(bytes, 0, b" ") else { return Ok(()) };
    while let Some(found) = unescaped(bytes, at, b"=,") {
        if bytes[found] == b',' {
            let message = format!("not line protocol: no field before the comma at byte {found}");
            return Err(Fault::Malformed.in_field("line", message));
        }
        let end = end_of_value(bytes, found + 1);
        let is_last = bytes.get(end) != Some(&b',');
        if is_last {
            break;
        }
        at = end + 1;
        if bytes.get(at).is_none_or(u8::is_ascii_whitespace) {
            let message = format!("not line protocol: no field after the comma at byte {end}");
            return Err(Fault::Malformed.in_field("line", message));
        }
    }
    Ok(())
}

/// The position of the first of these bytes that has no backslash before it.
fn unescaped(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let mut at = from;
    while at < bytes.len() && !wanted.contains(&bytes[at]) {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at < bytes.len()).then_some(at)
}

/// The end of a field's value.
fn end_of_value(bytes: &[u8], value: usize) -> usize {
    match bytes.get(value) {
        Some(b'"') => (lenient::end_of_string(bytes, value) + 1).min(bytes.len()),
        _ => unescaped(bytes, value, b", ").unwrap_or(bytes.len()),
    }
}

/// Whether a value is an integer, with its suffix, that 64 bits do not hold.
fn is_beyond_64_bits(word: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(word) else { return false };
    let Some(digits) = text.strip_suffix(['i', 'u']) else { return false };
    let is_integer = {
        let unsigned = digits.strip_prefix('-').filter(|_| text.ends_with('i')).unwrap_or(digits);
        !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit())
    };
    is_integer
        && if text.ends_with('i') { digits.parse::<i64>().is_err() } else { digits.parse::<u64>().is_err() }
}

/// Refuses a line before it is parsed if its parsed form would be many times larger: a field of a few bytes needs
/// much more memory. Each tag and field has one `=`, and a line may have at most as many fields as a request may have
/// readings.
fn check_line(line: &str, most: usize) -> Result<(), BadField> {
    let pairs = memchr::memchr_iter(b'=', line.as_bytes()).count();
    let allowed = most.saturating_add(MAX_SERIES);
    if line.len() > MAX_LINE {
        let message = format!("it has {} bytes; {MAX_LINE} are allowed", line.len());
        Err(Fault::OutOfRange.in_field("line", message))
    } else if pairs > allowed {
        let message = format!("it has {pairs} tags and fields; {allowed} are allowed");
        Err(Fault::TooManyRecords.in_field("line", message))
    } else {
        Ok(())
    }
}

fn check_series(line: &ParsedLine<'_>) -> Result<(), BadField> {
    let tags = || line.series.tag_set.iter().flatten();
    let names = tags().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    let names = names.chain(line.field_set.iter().map(|(name, _)| name.as_str()));
    for name in names.chain([line.series.measurement.as_str()]) {
        check_text("line", name)?;
    }
    let too_long = |message| Err(Fault::OutOfRange.in_field("line", message));
    let tags: usize = tags().map(|(key, value)| key.as_str().len() + value.as_str().len() + 2).sum();
    let series = line.series.measurement.as_str().len() + tags;
    if series > MAX_SERIES {
        return too_long(format!("measurement and tags have {series} bytes; {MAX_SERIES} are allowed"));
    }
    let longest = line.field_set.iter().map(|(name, _)| name.as_str().len()).max().unwrap_or(0);
    if longest > MAX_SERIES {
        return too_long(format!("a field's name has {longest} bytes; {MAX_SERIES} are allowed"));
    }
    check_keys(("line", "tag"), line.series.tag_set.iter().flatten().map(|(key, _)| key.as_str()))
}

/// The name of a field in an error.
fn shown(field: &str) -> String {
    field[..field.floor_char_boundary(LONGEST_SHOWN)].to_owned()
}

/// The readings of the fields that are numbers. A number that is not finite, and one whose metric the unit contradicts, is
/// left out.
fn fields_of(line: &ParsedLine<'_>, time: Timestamp) -> LineReadings {
    let mut readings = LineReadings::default();
    let measurement = line.series.measurement.as_str();
    let tag = |name: &str| line.tag_value(name).map(|value| value.as_str());
    let device_tag = DEVICE_TAGS.into_iter().find(|name| tag(name).is_some_and(|value| !value.is_empty()));
    let device: Arc<str> = fit(device_tag.and_then(tag).unwrap_or(measurement));
    let unit = tag("unit").and_then(Unit::get);
    let tags = line.series.tag_set.iter().flatten();
    let rest = labels(
        tags.map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| Some(*key) != device_tag && !(*key == "unit" && unit.is_some())),
    );
    let mut values = KeyedValues::default();
    for (field, value) in &line.field_set {
        let value = match value {
            FieldValue::F64(number) => *number,
            FieldValue::I64(number) => *number as f64,
            FieldValue::U64(number) => *number as f64,
            FieldValue::Boolean(flag) => f64::from(u8::from(*flag)),
            FieldValue::String(_) => continue,
        };
        if !value.is_finite() {
            let message = "not a finite number, or beyond what 64 bits hold";
            readings.left_out.push(Fault::NotFinite.in_field(shown(field.as_str()), message));
            continue;
        }
        let name = match field.as_str() {
            "value" => format!("{measurement}{rest}"),
            field => format!("{measurement}.{field}{rest}"),
        };
        let metric = fit(&name);
        if let Err(error) = check_unit("unit", unit, &metric) {
            readings.left_out.push(error);
            continue;
        }
        let reading = Reading { device: Arc::clone(&device), metric, value, unit, counter: None, time };
        match values.add(&reading) {
            Ok(true) => {
                readings.records.push(Record { reading, id: None, time_assumed: line.timestamp.is_none() });
            }
            Ok(false) => {}
            Err(_) => {
                let message = "the line has this field twice with different values; the first one counts";
                readings.left_out.push(Fault::Duplicate.in_field(shown(field.as_str()), message));
            }
        }
    }
    readings
}

#[cfg(test)]
mod tests;
