//! Judges the readings of a series by one rule, and keeps its alarms.

use garenne_protocol::sensor::Counter;

use crate::alarm::{
    change::Alarm,
    condition::{Micros, Sample},
    history::{History, Span},
    judge::Judge,
    pending::Pending,
    reconciler::Reconciler,
    restore::restore,
    rules::Rule,
};

/// The state of one rule, from a changed reading until judging converges.
#[derive(Debug)]
pub(super) struct RuleJudge<'r> {
    rule: &'r Rule,
    /// That of the series, in the rule's unit.
    counter: Option<Counter>,
    judge: Judge,
    /// The time from which on readings are judged.
    pub(super) from: Micros,
    pub(super) alarms: Reconciler,
    /// Its state after the newest reading, if known.
    pub(super) pending: Option<Pending>,
}

impl<'r> RuleJudge<'r> {
    pub(super) fn new(place: usize, rule: &'r Rule, counter: Option<Counter>) -> Self {
        Self {
            rule,
            counter,
            judge: Judge::new(rule.condition, counter),
            from: Micros::MAX,
            alarms: Reconciler::new(place),
            pending: None,
        }
    }

    pub(super) fn place(&self) -> usize {
        self.alarms.rule()
    }

    /// The readings before `from` that restoring needs besides `history`, for each of the alarms that may be open.
    pub(super) fn history_of(&self, from: Micros, open: &[Option<&Alarm>], history: &History) -> Vec<Span> {
        let restored = |open| restore(self.rule, self.counter, from, open, self.pending.as_ref(), history);
        open.iter().filter_map(|open| restored(*open).err()).flatten().collect()
    }

    /// Restores the state before `start`. Returns the readings before it that are missing in `history` for this.
    /// `no_readings` is set if there are none from `start` on.
    pub(super) fn restore(&mut self, start: Micros, no_readings: bool, history: &History) -> Vec<Span> {
        let open = self.alarms.start(start);
        if no_readings && open.is_none_or(|alarm| alarm.upto < start) {
            (self.judge, self.from) = (Judge::idle(self.rule.condition, open.map(Alarm::resumed)), start);
            return Vec::new();
        }
        match restore(self.rule, self.counter, start, open, self.pending.as_ref(), history) {
            Ok(restored) => {
                (self.judge, self.from) = (restored.judge, restored.from);
                Vec::new()
            }
            Err(missing) => missing,
        }
    }

    /// Judges a reading. One before `start` only leads to the state there.
    pub(super) fn judge(&mut self, sample: &Sample, start: Micros, new_id: &mut impl FnMut() -> String) {
        if let Some(point) = self.rule.convert(sample).filter(|point| point.at >= self.from) {
            if point.at < start {
                self.judge.judge_within(point);
            } else if let Some(excursion) = self.judge.judge(point) {
                self.alarms.end(excursion, new_id);
            }
        }
        if sample.at >= start {
            self.alarms.pass(sample.at, self.judge.excursion());
        }
    }

    /// Whether further readings are judged as before the change at `changed`.
    pub(super) fn has_converged(&self, at: Micros, changed: Micros) -> bool {
        self.judge.has_converged(changed, self.alarms.open_at(at).map(Alarm::excursion))
    }

    /// Ends at a reading after which nothing changes.
    pub(super) fn converge(&mut self, at: Micros, new_id: &mut impl FnMut() -> String) {
        self.alarms.converge(at, self.judge.excursion(), new_id);
    }

    /// Ends at the end of the series, whose newest reading is at `newest`.
    pub(super) fn finish(&mut self, newest: Option<Micros>, new_id: &mut impl FnMut() -> String) {
        self.alarms.finish(self.judge.excursion(), new_id);
        self.pending = newest.and_then(|upto| Pending::after(&self.judge, upto));
    }
}
