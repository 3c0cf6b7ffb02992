//! How long ago something was, for a person.

use time::{Duration, OffsetDateTime};

/// A device's newest reading that is older is marked, here and on the dashboard's pages.
const OLD: Duration = Duration::DAY;

/// The age of a device's newest reading, with ` (old)` beyond a day.
pub(super) fn age_of_newest(at: OffsetDateTime, now: OffsetDateTime) -> String {
    let mark = if now - at > OLD { " (old)" } else { "" };
    age(at, now) + mark
}

/// The time in its largest unit: `2 min ago`, `12 years ago`, `in 3 h`.
pub(super) fn age(at: OffsetDateTime, now: OffsetDateTime) -> String {
    let since = now - at;
    let (length, is_past) = (since.abs(), since >= Duration::ZERO);
    let (seconds, days) = (length.whole_seconds(), length.whole_days());
    let text = match (seconds, days) {
        (..60, _) => format!("{seconds} s"),
        (60..3_600, _) => format!("{} min", seconds / 60),
        (_, ..2) => format!("{} h", seconds / 3_600),
        (_, 2..60) => format!("{days} days"),
        (_, 60..730) => format!("{} months", days * 12 / 365),
        _ => format!("{} years", days * 100 / 36_525),
    };
    if is_past { format!("{text} ago") } else { format!("in {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newest_reading_older_than_a_day_is_marked() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let newest = |since| age_of_newest(now - since, now);
        assert_eq!(newest(Duration::DAY), "24 h ago");
        assert_eq!(newest(Duration::DAY + Duration::SECOND), "24 h ago (old)");
        assert_eq!(newest(Duration::DAY * 4_383), "12 years ago (old)");
        assert_eq!(newest(-Duration::DAY * 3), "in 3 days");
    }

    #[test]
    fn an_age_has_one_unit() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let day = Duration::DAY;
        for (since, expected) in [
            (Duration::milliseconds(900), "0 s ago"),
            (Duration::seconds(59), "59 s ago"),
            (Duration::seconds(150), "2 min ago"),
            (Duration::hours(47), "47 h ago"),
            (day * 2, "2 days ago"),
            (day * 61, "2 months ago"),
            (day * 700, "23 months ago"),
            (day * 731, "2 years ago"),
            (day * 4_383, "12 years ago"),
            (Duration::hours(-3), "in 3 h"),
        ] {
            assert_eq!(age(now - since, now), expected);
        }
    }
}
