//! Judges readings in order of time.

mod references;
mod run;
mod usage;

use garenne_protocol::sensor::Counter;

use super::{
    condition::{Condition, Hold, Micros, Point},
    excursion::Excursion,
};
pub(super) use references::References;
pub(super) use run::Run;
pub(super) use usage::Usage;

/// Returns the excursions in points that are ordered by time. [`Condition::Silent`] has none. `counter` is that of the
/// series, if it has one.
pub fn find_excursions(condition: &Condition, counter: Option<Counter>, points: &[Point]) -> Vec<Excursion> {
    let mut judge = Judge::new(*condition, counter);
    let mut excursions: Vec<_> = points.iter().filter_map(|point| judge.judge(*point)).collect();
    excursions.extend(judge.excursion());
    excursions
}

/// Judges one reading after the other. Its state has a fixed size.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    condition: Condition,
    /// How the values of a counter differ.
    counter: Option<Counter>,
    memory: Memory,
    /// The excursion that the newest reading belongs to.
    excursion: Option<Excursion>,
    newest: Option<Micros>,
}

/// The earlier readings that a condition needs.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// Whether the last reading was in an excursion.
    Nothing,
    References(References),
    Run(Option<Run>),
    Usage(Usage),
}

impl Judge {
    pub(super) fn new(condition: Condition, counter: Option<Counter>) -> Self {
        let memory = match condition {
            Condition::Above { hold: Some(_), .. } | Condition::Below { hold: Some(_), .. } => {
                Memory::Run(None)
            }
            Condition::Above { .. } | Condition::Below { .. } | Condition::Silent { .. } => Memory::Nothing,
            Condition::RateOfChange { per, .. } => Memory::References(References::new(per)),
            Condition::Consumption { within, .. } => {
                Memory::Usage(Usage::new(counter.unwrap_or_default(), within))
            }
            Condition::Stuck { .. } => Memory::Run(None),
        };
        Self::restored(condition, counter, memory, None)
    }

    /// A judge that has judged all earlier readings.
    pub(super) fn restored(
        condition: Condition,
        counter: Option<Counter>,
        memory: Memory,
        excursion: Option<Excursion>,
    ) -> Self {
        Self { condition, counter, memory, excursion, newest: None }
    }

    /// A judge that has no reading to judge.
    pub(super) fn idle(condition: Condition, excursion: Option<Excursion>) -> Self {
        Self::restored(condition, None, Memory::Nothing, excursion)
    }

    /// The excursion that the newest reading belongs to.
    pub(super) fn excursion(&self) -> Option<Excursion> {
        self.excursion
    }

    /// The run of the newest readings of a condition that must hold, while there is no excursion.
    pub(super) fn held_run(&self) -> Option<Option<Run>> {
        match (&self.memory, self.excursion) {
            (Memory::Run(run), None) if self.condition.has_hold() => Some(*run),
            _ => None,
        }
    }

    /// Judges the next reading. Returns the excursion that it ends.
    pub(super) fn judge(&mut self, mut point: Point) -> Option<Excursion> {
        let violates = self.violates(&mut point);
        self.newest = Some(point.at);
        match &mut self.excursion {
            Some(excursion) if violates => excursion.upto = point.at,
            Some(excursion) if point.at.saturating_sub(excursion.upto) >= self.condition.hold() => {
                let ended = Some(point.at);
                return self.excursion.take().map(|excursion| Excursion { ended, ..excursion });
            }
            None if violates => {
                let Point { at, value, .. } = point;
                self.excursion = Some(Excursion { since: at, upto: at, ended: None, value });
            }
            _ => {}
        }
        None
    }

    /// Judges the next reading of an excursion that is known not to end before the readings that follow.
    pub(super) fn judge_within(&mut self, mut point: Point) {
        let violates = self.violates(&mut point);
        self.newest = Some(point.at);
        if let Some(excursion) = self.excursion.as_mut().filter(|_| violates) {
            excursion.upto = point.at;
        }
    }

    /// Whether a reading violates the condition. Its value becomes the one that an alarm reports.
    fn violates(&mut self, reading: &mut Point) -> bool {
        let (is_on, point) = (self.excursion.is_some(), *reading);
        match (self.condition, &mut self.memory) {
            (Condition::Above { limit, clear, hold }, memory) => {
                let is_beyond = point.value > limit || (is_on && point.value > clear);
                is_beyond_long_enough(memory, hold, is_beyond, is_on, point, self.newest)
            }
            (Condition::Below { limit, clear, hold }, memory) => {
                let is_beyond = point.value < limit || (is_on && point.value < clear);
                is_beyond_long_enough(memory, hold, is_beyond, is_on, point, self.newest)
            }
            (Condition::RateOfChange { limit, per }, Memory::References(references)) => {
                references.advance(point).is_some_and(|reference| {
                    let share = point.at.saturating_sub(reference.at) as f64 / per as f64;
                    let change = match self.counter {
                        Some(counter) => counter.step(reference.count(), point.count()),
                        None => (point.value - reference.value).abs(),
                    };
                    change > limit * share
                })
            }
            (Condition::Consumption { limit, .. }, Memory::Usage(usage)) => {
                reading.value = usage.advance(point);
                reading.value > limit
            }
            (Condition::Stuck { duration, readings }, Memory::Run(run)) => {
                let run = match run {
                    Some(run) if run.value == point.value => {
                        run.count = run.count.saturating_add(1);
                        run
                    }
                    _ => run.insert(Run::new(point, self.newest)),
                };
                run.is_stuck(point.at, duration, readings)
            }
            _ => false,
        }
    }

    /// Whether further readings are judged as they were before readings changed, the last of them at `changed`.
    ///
    /// `earlier` is the excursion that the newest reading belonged to then, with its later end.
    pub(super) fn has_converged(&self, changed: Micros, earlier: Option<Excursion>) -> bool {
        let newest = self.newest;
        match (&self.memory, self.excursion, earlier) {
            (_, Some(_), None) | (_, None, Some(_)) => false,
            (Memory::Nothing, ..) => true,
            (Memory::References(references), None, None) => references.are_after(changed),
            // The excursion ends `per` after the last violating reading, so that must be the same, too.
            (Memory::References(references), Some(excursion), Some(earlier)) => {
                let is_last_known = newest.is_some_and(|newest| earlier.upto <= newest);
                references.are_after(changed)
                    && (newest == Some(excursion.upto) || (is_last_known && excursion.upto == earlier.upto))
            }
            (Memory::Usage(usage), ..) => usage.is_after(changed),
            // The run is the same if it and the reading before it were not changed.
            (Memory::Run(Some(run)), None, None) => run.before.is_some_and(|before| changed < before),
            // The newest reading ended the run, and would have ended any other.
            (Memory::Run(None), None, None) => newest.is_some_and(|newest| changed < newest),
            (Memory::Run(_), Some(excursion), Some(earlier)) => {
                self.condition.required_hold().is_some() || excursion.value == earlier.value
            }
        }
    }
}

/// Whether a reading is beyond a limit, and has been for as long as is required. An alarm that is on needs no more time.
fn is_beyond_long_enough(
    memory: &mut Memory,
    hold: Option<Hold>,
    is_beyond: bool,
    is_on: bool,
    point: Point,
    newest: Option<Micros>,
) -> bool {
    let (Some(hold), Memory::Run(run)) = (hold, memory) else { return is_beyond };
    if !is_beyond {
        *run = None;
        return false;
    }
    if is_on {
        return true;
    }
    let run = match run {
        Some(run) => {
            run.count = run.count.saturating_add(1);
            run
        }
        None => run.insert(Run::new(point, newest)),
    };
    run.is_held(point.at, hold)
}

impl Condition {
    /// How long an excursion lasts after its last violating reading.
    fn hold(&self) -> Micros {
        match self {
            Self::RateOfChange { per, .. } => *per,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
