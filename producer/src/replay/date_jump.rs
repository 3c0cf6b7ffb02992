//! Notes jumps of dates whose order is a guess.

use garenne_protocol::sensor::Timestamp;

use super::civil_time::DateOrder;

/// A jump in microseconds. In the wrong order of day and month, the next day is a month later; in the wrong order of
/// day and year, a year.
const JUMP: i64 = 28 * 86_400 * 1_000_000;

/// Compares the times of consecutive rows.
pub(super) struct DateJumps {
    order: DateOrder,
    last: Option<Timestamp>,
    noted: bool,
}

impl DateJumps {
    /// `order` is the order in which the dates are read.
    pub(super) fn new(order: DateOrder) -> Self {
        Self { order, last: None, noted: false }
    }

    /// The note about the time of a row: the first time that it jumps by four weeks or more.
    pub(super) fn note(&mut self, time: Timestamp) -> Option<String> {
        let last = self.last.replace(time)?;
        let jump = time.as_micros() - last.as_micros();
        if self.noted || jump.abs() < JUMP {
            return None;
        }
        self.noted = true;
        let (days, words) = (jump / (86_400 * 1_000_000), self.order.words());
        Some(format!(
            "the time jumps by {days} days to {time}; ambiguous dates are read {words} (--date-order decides)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_jump_is_noted() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let mut jumps = DateJumps::new(DateOrder::Dmy);
        assert_eq!(jumps.note(at("2020-02-01T23:00:00Z")), None);
        assert_eq!(jumps.note(at("2020-02-02T00:00:00Z")), None);
        assert_eq!(
            jumps.note(at("2020-03-01T00:00:00Z")).unwrap(),
            "the time jumps by 28 days to 2020-03-01T00:00:00Z; ambiguous dates are read day first \
             (--date-order decides)"
        );
        assert_eq!(jumps.note(at("2021-03-01T00:00:00Z")), None);
    }
}
