//! Alarms, and what changes of them.

use super::{condition::Micros, excursion::Excursion};

/// An alarm of one device, metric and rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// The id, unique in the fleet.
    pub id: String,
    /// The time of the first violating reading; for silence, that of the last reading before it.
    pub since: Micros,
    /// The time of the last violating reading; for silence, the same as `since`.
    pub upto: Micros,
    /// The time of the reading that cleared it; none while it is open.
    pub ended: Option<Micros>,
    /// The value that raised it, in the rule's unit; none for silence.
    pub value: Option<f64>,
}

/// A change of an alarm that an alert reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmEvent {
    /// The alarm is new. It may be over already.
    Raised,
    /// The alarm is over, or its readings were withdrawn while it was open.
    Cleared,
}

/// A new, corrected or withdrawn alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmChange {
    /// The rule, by its place among those of the series.
    pub rule: usize,
    /// The alarm as it is now.
    pub alarm: Alarm,
    /// Whether no stored readings confirm it any more.
    pub is_withdrawn: bool,
    /// The report of an alert, if there is one.
    pub event: Option<AlarmEvent>,
}

impl Alarm {
    pub(super) fn new(id: String, excursion: Excursion) -> Self {
        let Excursion { since, upto, ended, value } = excursion;
        Self { id, since, upto, ended, value: Some(value) }
    }

    /// The excursion that the alarm is about.
    pub fn excursion(&self) -> Excursion {
        let &Self { since, upto, ended, value, .. } = self;
        Excursion { since, upto, ended, value: value.unwrap_or(f64::NAN) }
    }

    /// Its excursion at a time when it lasted.
    pub(super) fn resumed(&self) -> Excursion {
        Excursion { ended: None, ..self.excursion() }
    }

    pub(super) fn ends_by(&self, at: Micros) -> bool {
        self.ended.is_some_and(|ended| ended <= at)
    }
}
