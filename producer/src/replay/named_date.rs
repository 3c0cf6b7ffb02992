//! Parses dates with the name of a month, in English, German, French, Spanish and Italian.

use jiff::civil::Date;

/// The names of each month. A prefix of at least three letters stands for a name.
const MONTHS: [&[&str]; 12] = [
    &["january", "januar", "jänner", "janvier", "enero", "gennaio"],
    &["february", "februar", "feber", "février", "fevrier", "febrero", "febbraio"],
    &["march", "märz", "maerz", "mrz", "mars", "marzo"],
    &["april", "avril", "abril", "aprile"],
    &["may", "mai", "mayo", "maggio"],
    &["june", "juni", "juin", "junio", "giugno"],
    &["july", "juli", "juillet", "julio", "luglio"],
    &["august", "août", "aout", "agosto"],
    &["september", "septembre", "septiembre", "setiembre", "settembre"],
    &["october", "oktober", "octobre", "octubre", "ottobre"],
    &["november", "novembre", "noviembre"],
    &["december", "dezember", "décembre", "decembre", "diciembre", "dicembre"],
];

/// The names of the weekdays, in English and German. A prefix of at least two letters stands for a name.
const WEEKDAYS: [&str; 15] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "montag",
    "dienstag",
    "mittwoch",
    "donnerstag",
    "freitag",
    "samstag",
    "sonnabend",
    "sonntag",
];

/// Characters between the parts of a date, and between a date and a time of day.
const SEPARATORS: [char; 6] = [' ', ',', '.', '-', '/', '_'];

/// The text without the weekday at its start.
pub(super) fn without_weekday(text: &str) -> &str {
    let word = letters(text);
    let lower = word.to_lowercase();
    let is_weekday = lower.len() >= 2 && WEEKDAYS.iter().any(|name| name.starts_with(&lower));
    if is_weekday { text[word.len()..].trim_start_matches([' ', ',', '.']) } else { text }
}

/// The date at the start of a text, and the text of the time of day after it. `None` if no month is named.
pub(super) fn named_date(text: &str) -> Option<(Date, String)> {
    let (before, month, after) = around_month(without_weekday(text))?;
    let before = before.trim_end_matches(SEPARATORS);
    let (first, after) = if before.is_empty() { number(after)? } else { (whole_number(before)?, after) };
    if before.is_empty()
        && let Some((clock, year)) = year_at_end(after)
    {
        return Some((date(year, month, first)?, clock.to_owned()));
    }
    let (second, rest) = number(after)?;
    let (day, year) = if first.len() == 4 { (second, first) } else { (first, second) };
    let rest = rest.trim_start_matches(SEPARATORS);
    let rest = ["at ", "um ", "T"].iter().find_map(|word| rest.strip_prefix(word)).unwrap_or(rest);
    Some((date(year, month, day)?, rest.to_owned()))
}

/// The text before the first name of a month, the month's number, and the text after it.
fn around_month(text: &str) -> Option<(&str, i8, &str)> {
    let mut start = 0;
    while let Some(at) = text[start..].find(char::is_alphabetic) {
        start += at;
        let word = letters(&text[start..]);
        if word.len() >= 3
            && let Some(month) = month(&word.to_lowercase())
        {
            return Some((&text[..start], month, &text[start + word.len()..]));
        }
        start += word.len();
    }
    None
}

/// The month that a word in lower case names. `jui` may be juin or juillet.
fn month(word: &str) -> Option<i8> {
    let is_month = |names: &[&str]| names.iter().any(|name| name.starts_with(word));
    let mut months = (1_i8..).zip(MONTHS).filter(|(_, names)| is_month(names));
    let (month, _) = months.next()?;
    months.next().is_none().then_some(month)
}

/// The letters at the start of a text.
fn letters(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len())]
}

/// The number after the separators at the start of a text, and the rest. `10th` is 10.
fn number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(SEPARATORS);
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let ordinal = ["st", "nd", "rd", "th"].iter().find_map(|ending| rest.strip_prefix(ending));
    Some((whole_number(number)?, ordinal.unwrap_or(rest)))
}

/// A day or a year.
fn whole_number(text: &str) -> Option<&str> {
    (matches!(text.len(), 1 | 2 | 4) && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

/// The time of day and the year after it, as in `Mar 10 18:30:00 2004`.
fn year_at_end(text: &str) -> Option<(&str, &str)> {
    let (clock, year) = text.trim().rsplit_once(' ')?;
    (clock.contains(':') && year.len() == 4).then(|| Some((clock, whole_number(year)?)))?
}

fn date(year: &str, month: i8, day: &str) -> Option<Date> {
    let (digits, year) = (year.len(), year.parse::<i16>().ok()?);
    let year = match (digits, year) {
        (4, _) => year,
        // As in POSIX.
        (2, 69..) => 1900 + year,
        (2, _) => 2000 + year,
        _ => return None,
    };
    Date::new(year, month, day.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_with_the_name_of_a_month_are_parsed() {
        for (text, date, rest) in [
            ("10-October-2004 18:00", "2004-10-10", "18:00"),
            ("10 October 2004", "2004-10-10", ""),
            ("October 10, 2004 6:05 PM", "2004-10-10", "6:05 PM"),
            ("October 1st, 2004 at 6:05 PM", "2004-10-01", "6:05 PM"),
            ("15-August-2004T18:30", "2004-08-15", "18:30"),
            ("SEPTEMBER/1/2004", "2004-09-01", ""),
            ("Sept. 1, 2004", "2004-09-01", ""),
            ("2004-Mar-10 18:30GMT", "2004-03-10", "18:30GMT"),
            ("2004 August 1", "2004-08-01", ""),
            ("1-january-99 0:05", "1999-01-01", "0:05"),
            ("Wed, 10 Mar 2004 18:30:00 +0100", "2004-03-10", "18:30:00 +0100"),
            ("Wed Mar 10 18:30:00 2004", "2004-03-10", "18:30:00"),
            ("Wednesday, March 10, 2004", "2004-03-10", ""),
            ("10. März 2004 um 18:30", "2004-03-10", "18:30"),
            ("Mi, 10. Okt. 2004 18:30", "2004-10-10", "18:30"),
            ("24.Dez.2004", "2004-12-24", ""),
            ("1 août 2004", "2004-08-01", ""),
            ("3 dic 2004", "2004-12-03", ""),
            ("3_ottobre_2004", "2004-10-03", ""),
        ] {
            let (found, after) = named_date(text).unwrap_or_else(|| panic!("{text} is refused"));
            assert_eq!((found.to_string().as_str(), after.as_str()), (date, rest), "{text}");
        }
    }

    #[test]
    fn every_full_name_and_every_short_name_is_its_month() {
        for (month, names) in (1_i8..).zip(MONTHS) {
            for name in names {
                let found = named_date(&format!("2-{name}-2004")).map(|(date, _)| date.month());
                assert_eq!(found, Some(month), "{name}");
            }
        }
        for (month, name) in (1_i8..).zip("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(' ')) {
            assert_eq!(named_date(&format!("2 {name} 04")).unwrap().0.month(), month);
        }
    }

    #[test]
    fn other_text_is_not_a_date() {
        for text in [
            "",
            "march",
            "10/03/2004",
            "October 2004",
            "31-feb-2004",
            "1 jui 2004",
            "marble 1 2004",
            "10 mar 4",
        ] {
            assert_eq!(named_date(text), None, "{text}");
        }
    }
}
