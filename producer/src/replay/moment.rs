//! The moment of a local time in a time zone.

use garenne_protocol::sensor::Timestamp;
use jiff::{
    Unit,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase},
};

/// When a row was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At this time.
    At(Timestamp),
    /// In the hour that occurs twice when the clock is set back: before or after that.
    Repeated { first: Timestamp, second: Timestamp },
}

/// Why a text has no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMoment {
    /// It is not a time.
    NotATime,
    /// It is a Unix time without its last digits.
    Shortened,
    /// The zone's clock is set forward over it, by this many minutes.
    Skipped { minutes: i32 },
}

impl Moment {
    /// A local time in a zone. Fails if the zone's clock skips the time, or it is out of range.
    pub(super) fn in_zone(zone: &TimeZone, local: DateTime) -> Result<Self, NoMoment> {
        match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => Self::at(offset, local),
            AmbiguousOffset::Gap { before, after } => {
                Err(NoMoment::Skipped { minutes: (after.seconds() - before.seconds()) / 60 })
            }
            AmbiguousOffset::Fold { before, after } => Ok(Self::Repeated {
                first: Self::at(before, local)?.first(),
                second: Self::at(after, local)?.first(),
            }),
        }
    }

    /// A local time with an offset.
    pub(super) fn at(offset: Offset, local: DateTime) -> Result<Self, NoMoment> {
        Self::of(offset.to_timestamp(local).map_err(|_| NoMoment::NotATime)?)
    }

    /// An instant, rounded to the microseconds of a [`Timestamp`].
    pub(super) fn of(instant: jiff::Timestamp) -> Result<Self, NoMoment> {
        let rounded = instant.round(Unit::Microsecond).map_err(|_| NoMoment::NotATime)?;
        Timestamp::from_micros(rounded.as_microsecond()).map(Self::At).map_err(|_| NoMoment::NotATime)
    }

    /// The moment, this many seconds later.
    pub(super) fn plus_seconds(self, seconds: f64) -> Option<Self> {
        let later = |time: Timestamp| time.plus_seconds(seconds).ok();
        Some(match self {
            Self::At(time) => Self::At(later(time)?),
            Self::Repeated { first, second } => {
                Self::Repeated { first: later(first)?, second: later(second)? }
            }
        })
    }

    /// The time, the first one of a repeated hour.
    pub(super) fn first(self) -> Timestamp {
        match self {
            Self::At(time) | Self::Repeated { first: time, .. } => time,
        }
    }
}

/// The time zone with a name such as `Europe/Berlin`. The data is part of the program, so that a recording gives the
/// same times on every host.
pub(super) fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZoneDatabase::bundled()
        .get(name)
        .map_err(|_| format!("zone {name:?} is unknown, expected a name such as Europe/Berlin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(local: &str) -> Result<Moment, NoMoment> {
        Moment::in_zone(&zone("Europe/Berlin").unwrap(), local.parse().unwrap())
    }

    fn time(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn summer_and_winter_have_their_offsets() {
        assert_eq!(moment("2026-07-01T12:00"), Ok(Moment::At(time("2026-07-01T10:00:00Z"))));
        assert_eq!(moment("2026-01-01T12:00"), Ok(Moment::At(time("2026-01-01T11:00:00Z"))));
    }

    #[test]
    fn one_hour_occurs_twice_and_one_does_not_occur() {
        let (first, second) = (time("2026-10-25T00:30:00Z"), time("2026-10-25T01:30:00Z"));
        assert_eq!(moment("2026-10-25T02:30"), Ok(Moment::Repeated { first, second }));
        assert_eq!(moment("2026-03-29T02:30"), Err(NoMoment::Skipped { minutes: 60 }));
        assert_eq!(moment("2026-03-29T03:00"), Ok(Moment::At(time("2026-03-29T01:00:00Z"))));
    }

    #[test]
    fn an_unknown_zone_is_refused_by_name() {
        let error = zone("Europe/Bonn").unwrap_err();
        assert_eq!(error, "zone \"Europe/Bonn\" is unknown, expected a name such as Europe/Berlin");
    }
}
