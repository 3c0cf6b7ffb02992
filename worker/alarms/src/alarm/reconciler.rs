//! Assigns excursions to the alarms that were known before readings changed.

use std::collections::VecDeque;

use super::{
    change::{Alarm, AlarmChange, AlarmEvent},
    condition::Micros,
    excursion::Excursion,
};

/// The alarms of a rule, and what changes of them.
///
/// An excursion has the id of the first known alarm that overlaps it, each alarm counting from its first reading to
/// the one that ended it. Further alarms that overlap it are withdrawn, and an excursion that overlaps none has a new
/// id. An alarm that was reported as over does not become open again: an excursion that lasts has the id of an open
/// alarm or a new one. So each id is raised once and cleared at most once, and an open alarm is never one that its
/// receivers take for cleared.
#[derive(Debug)]
pub(super) struct Reconciler {
    rule: usize,
    /// The known alarms that did not end before the newest judged reading, in order of time.
    known: VecDeque<Known>,
    /// The first of the known alarms that ended within the present excursion.
    absorbed: Option<Alarm>,
    changes: Vec<AlarmChange>,
}

#[derive(Debug)]
struct Known {
    alarm: Alarm,
    /// Whether an excursion has its id.
    is_taken: bool,
}

impl Reconciler {
    pub(super) fn new(rule: usize) -> Self {
        Self { rule, known: VecDeque::new(), absorbed: None, changes: Vec::new() }
    }

    /// The place of the rule among those of the series.
    pub(super) fn rule(&self) -> usize {
        self.rule
    }

    pub(super) fn add_known(&mut self, alarm: Alarm) {
        if self.known.iter().all(|known| known.alarm.id != alarm.id) {
            let place = self.known.partition_point(|known| known.alarm.since <= alarm.since);
            self.known.insert(place, Known { alarm, is_taken: false });
        }
    }

    /// Starts at a changed reading. Returns the alarm that was open before it.
    pub(super) fn start(&mut self, at: Micros) -> Option<&Alarm> {
        while self.known.pop_front_if(|known| known.alarm.ended.is_some_and(|ended| ended < at)).is_some() {}
        self.known.front().map(|known| &known.alarm).filter(|alarm| alarm.since < at)
    }

    /// The known alarm that was open after the reading at `at`. Earlier alarms are [passed](Self::pass).
    pub(super) fn open_at(&self, at: Micros) -> Option<&Alarm> {
        self.known.front().map(|known| &known.alarm).filter(|alarm| alarm.since <= at)
    }

    /// Decides on the known alarms that ended by `at`, within the excursion `present` or outside of any.
    pub(super) fn pass(&mut self, at: Micros, present: Option<Excursion>) {
        while let Some(Known { alarm, is_taken }) = self.known.pop_front_if(|known| known.alarm.ends_by(at)) {
            let is_absorbed = present.is_some_and(|excursion| !alarm.ends_by(excursion.since));
            match self.absorbed {
                _ if is_taken => {}
                None if is_absorbed => self.absorbed = Some(alarm),
                _ => self.withdraw(alarm),
            }
        }
    }

    /// An excursion ended.
    pub(super) fn end(&mut self, excursion: Excursion, new_id: &mut impl FnMut() -> String) {
        let end = excursion.ended.unwrap_or(Micros::MAX);
        self.pass(end, Some(excursion));
        let mut alarm = self.absorbed.take();
        if let Some(known) = self.known.front_mut()
            && alarm.is_none()
            && known.alarm.since < end
            && !known.is_taken
        {
            // It lasted longer than the excursion: it was extended by a reading that changed, or was split.
            known.is_taken = true;
            alarm = Some(known.alarm.clone());
        }
        self.settle(excursion, alarm, new_id);
    }

    /// The reading at `at` and all further ones are judged as before, now within `present`.
    pub(super) fn converge(
        &mut self,
        at: Micros,
        present: Option<Excursion>,
        new_id: &mut impl FnMut() -> String,
    ) {
        let Some(excursion) = present else { return };
        let Some(Known { alarm: known, is_taken }) = self.known.pop_front() else { return };
        let upto = if known.upto > at { known.upto } else { excursion.upto };
        let excursion = Excursion { upto, ended: known.ended, ..excursion };
        let (mut first, mut other) = (self.absorbed.take(), Some(known).filter(|_| !is_taken));
        if excursion.ended.is_none() || first.is_none() {
            std::mem::swap(&mut first, &mut other);
        }
        if let Some(other) = other {
            self.withdraw(other);
        }
        let alarm = self.settle(excursion, first, new_id);
        self.known.push_front(Known { alarm, is_taken: false });
    }

    /// There are no further readings.
    pub(super) fn finish(&mut self, present: Option<Excursion>, new_id: &mut impl FnMut() -> String) {
        let mut open = None;
        let known = std::mem::take(&mut self.known).into_iter();
        let unclaimed = known.filter(|known| !known.is_taken).map(|known| known.alarm);
        for alarm in self.absorbed.take().into_iter().chain(unclaimed) {
            match open {
                None if present.is_some() && alarm.ended.is_none() => open = Some(alarm),
                _ => self.withdraw(alarm),
            }
        }
        if let Some(excursion) = present {
            self.settle(excursion, open, new_id);
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<AlarmChange> {
        std::mem::take(&mut self.changes)
    }

    /// Gives an excursion the id of a known alarm, or a new one.
    fn settle(
        &mut self,
        excursion: Excursion,
        known: Option<Alarm>,
        new_id: &mut impl FnMut() -> String,
    ) -> Alarm {
        let Some(known) = known else {
            let alarm = Alarm::new(new_id(), excursion);
            self.change(alarm.clone(), false, Some(AlarmEvent::Raised));
            return alarm;
        };
        let is_cleared = known.ended.is_none() && excursion.ended.is_some();
        let alarm = Alarm::new(known.id.clone(), excursion);
        if alarm != known {
            self.change(alarm.clone(), false, is_cleared.then_some(AlarmEvent::Cleared));
        }
        alarm
    }

    fn withdraw(&mut self, alarm: Alarm) {
        let event = alarm.ended.is_none().then_some(AlarmEvent::Cleared);
        self.change(alarm, true, event);
    }

    fn change(&mut self, alarm: Alarm, is_withdrawn: bool, event: Option<AlarmEvent>) {
        self.changes.push(AlarmChange { rule: self.rule, alarm, is_withdrawn, event });
    }
}
