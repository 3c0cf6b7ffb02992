//! The version of a task: which of two that say something of the same thing is the later one.

use std::{
    fmt,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use thiserror::Error;

/// When a task was first accepted, and a sequence within that time. The text is `<microseconds since 1970>-<sequence>`.
///
/// It is given once, by the program that accepts the task or creates it, and never changes after that: batches, spools,
/// forwarding gateways and copies carry it. So versions have one order, in whatever order the tasks arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    micros: i64,
    sequence: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.micros, self.sequence)
    }
}

/// A text is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("must be microseconds since 1970 and a sequence up to {max}, such as 1790000000000000-0", max = i32::MAX)]
pub struct BadVersion;

impl Version {
    /// The end of the year 9999, the last that a database's time can be.
    const MAX_MICROS: i64 = 253_402_300_799_999_999;
    /// How far a version may be ahead of the clock of the worker that receives it. One day.
    const MAX_AHEAD: i64 = 24 * 3600 * 1_000_000;

    /// A new version, later than every earlier one of this process, also if its clock was set back.
    pub fn next() -> Self {
        static LAST: Mutex<Version> = Mutex::new(Version { micros: 0, sequence: 0 });
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = micros(SystemTime::now());
        *last = if micros > last.micros { Self { micros, sequence: 0 } } else { last.plus(1) };
        *last
    }

    /// The version of a task without one: the second in which its publisher says it published it (`timestamp`), and
    /// within that second when it arrived. Only the arrival if there is no such second, or a later one.
    pub(super) fn of_arrival(timestamp: Option<u64>, now: SystemTime) -> Self {
        let arrived = micros(now);
        let stated = timestamp.and_then(|seconds| i64::try_from(seconds).ok()?.checked_mul(1_000_000));
        let micros = stated.filter(|stated| *stated <= arrived).unwrap_or(arrived);
        Self { micros, sequence: 0 }.plus(usize::try_from(arrived - micros).unwrap_or(usize::MAX))
    }

    /// The version of the record at an index, of a message with this version.
    #[must_use]
    pub fn plus(self, index: usize) -> Self {
        let sequence = i32::try_from(index).ok().and_then(|index| self.sequence.checked_add(index));
        match sequence {
            Some(sequence) => Self { sequence, ..self },
            None => Self { micros: self.micros.saturating_add(1), sequence: 0 },
        }
    }

    /// This version, or `otherwise` if it is more than a day ahead of it: a clock that is wrong must not make a reading
    /// the latest for ever.
    #[must_use]
    pub(super) fn unless_ahead_of(self, otherwise: Self) -> Self {
        if self.micros > otherwise.micros.saturating_add(Self::MAX_AHEAD) { otherwise } else { self }
    }

    /// When the task was accepted. The sequence counts as microseconds, so tasks of one time have different ones.
    pub fn time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros((self.micros + i64::from(self.sequence)).unsigned_abs())
    }

    /// Microseconds since 1970, and the sequence.
    pub fn parts(self) -> (i64, i32) {
        (self.micros, self.sequence)
    }
}

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let (micros, sequence) = text.split_once('-').unwrap_or((text, "0"));
        let micros = micros.parse().ok().filter(|micros| (0..=Self::MAX_MICROS).contains(micros));
        let sequence = sequence.parse().ok().filter(|sequence| *sequence >= 0);
        Ok(Self { micros: micros.ok_or(BadVersion)?, sequence: sequence.ok_or(BadVersion)? })
    }
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    i64::try_from(since).unwrap_or(Version::MAX_MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_process_ascend_and_read_back() {
        let versions: Vec<_> = (0..10_000).map(|_| Version::next()).collect();
        assert!(versions.is_sorted_by(|one, next| one < next));
        assert!(versions.iter().all(|version| version.to_string().parse() == Ok(*version)));
        assert_eq!("7".parse(), Ok(Version { micros: 7, sequence: 0 }));
        for text in ["", "-1", "1-", "1--1", "now", "1.5", "1-2147483648", "253402300800000000"] {
            assert_eq!(text.parse::<Version>(), Err(BadVersion), "{text}");
        }
    }

    #[test]
    fn records_of_a_message_follow_each_other_also_after_the_last_sequence() {
        let last = Version { micros: 5, sequence: i32::MAX };
        assert!(last < last.plus(1));
        assert_eq!(last.plus(0), last);
        assert_eq!(Version { micros: 5, sequence: 1 }.plus(2), Version { micros: 5, sequence: 3 });
    }

    #[test]
    fn without_a_version_the_stated_second_counts_and_then_the_arrival() {
        let at = |micros| UNIX_EPOCH + Duration::from_micros(micros);
        let of = |timestamp, micros| Version::of_arrival(timestamp, at(micros)).parts();
        assert_eq!(of(Some(3), 3_500_000), (3_000_000, 500_000));
        assert_eq!(of(None, 3_500_000), (3_500_000, 0));
        assert_eq!(of(Some(4), 3_500_000), (3_500_000, 0), "it cannot be later than it arrived");
        // The older one arrives later, because its worker was killed.
        assert!(of(Some(3), 9_000_000) < of(Some(4), 4_100_000));
    }

    #[test]
    fn a_version_far_ahead_of_its_receiver_counts_as_the_time_of_arrival() {
        let arrival = Version { micros: 5, sequence: 0 };
        let ahead = Version { micros: 5 + Version::MAX_AHEAD, sequence: 0 };
        assert_eq!(ahead.unless_ahead_of(arrival), ahead);
        assert_eq!(Version { micros: ahead.micros + 1, ..ahead }.unless_ahead_of(arrival), arrival);
    }
}
