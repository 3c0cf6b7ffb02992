//! Restores the state of a rule before a changed reading.
//!
//! The rows of alarms are those of judging all earlier readings, so they state whether an alarm was open. What else
//! a condition remembers is found in the few readings before.

use std::ops::ControlFlow;

use garenne_protocol::sensor::Counter;

use super::{
    change::Alarm,
    condition::{Condition, Micros},
    excursion::Excursion,
    history::{History, Span},
    judge::{Judge, Memory, References, Run, Usage},
    pending::Pending,
    rules::Rule,
};

/// The least time before a changed reading in which earlier ones are searched first.
const MIN_HORIZON: Micros = 24 * 3_600_000_000;

/// A judge of a rule.
pub(super) struct Restored {
    pub(super) judge: Judge,
    /// The time from which on it is to judge. Before the changed reading, the alarm is known not to end.
    pub(super) from: Micros,
}

/// Returns the rule's judge before the reading at `start`, where the alarm `open` was open. `pending` is the rule's
/// state after the newest reading that did not change, if known. The error is the spans that are needed, too.
pub(super) fn restore(
    rule: &Rule,
    counter: Option<Counter>,
    start: Micros,
    open: Option<&Alarm>,
    pending: Option<&Pending>,
    history: &History,
) -> Result<Restored, Vec<Span>> {
    if let (None, Some(pending)) = (open, pending.filter(|pending| pending.upto < start)) {
        let judge = Judge::restored(rule.condition, counter, pending.memory(), None);
        return Ok(Restored { judge, from: start });
    }
    let horizon = rule.condition.duration().saturating_mul(4).max(MIN_HORIZON);
    let newest_before = |at| history.newest_before(rule, at, horizon);
    // The row states the last violating reading of the whole alarm, but not the last one before `start`.
    let late = open.filter(|alarm| start <= alarm.upto);
    let (memory, excursion, from) = match rule.condition {
        Condition::RateOfChange { per, .. } => {
            let previous =
                late.map(|_| newest_before(start)).transpose().map_err(|span| vec![span])?.flatten();
            let from = match (late, previous) {
                // The previous reading is less than `per` after the last violating one.
                (Some(alarm), Some(previous)) => previous.at.saturating_sub(per).max(alarm.since).min(start),
                _ => start,
            };
            let references = References::cuts(per, from).map(newest_before);
            let missing: Vec<_> = references.iter().filter_map(|found| found.err()).collect();
            if !missing.is_empty() {
                return Err(missing);
            }
            let references = References::restored(per, from, references.map(|found| found.ok().flatten()));
            let upto = |alarm: &Alarm| if late.is_some() { alarm.since } else { alarm.upto };
            let excursion = open.map(|alarm| Excursion { upto: upto(alarm), ..alarm.resumed() });
            (Memory::References(references), excursion, from)
        }
        condition => {
            // Every reading of the alarm violates the condition.
            let previous =
                late.map(|_| newest_before(start)).transpose().map_err(|span| vec![span])?.flatten();
            let upto = |alarm: &Alarm| match (late, previous) {
                (Some(_), Some(previous)) => previous.at.max(alarm.since),
                (Some(_), None) => alarm.since,
                (None, _) => alarm.upto,
            };
            let memory = match (condition, open) {
                (Condition::Stuck { readings, .. }, Some(alarm)) => {
                    let Excursion { value, since, .. } = alarm.excursion();
                    Memory::Run(Some(Run { value, since, count: readings, before: None }))
                }
                (Condition::Stuck { duration, readings }, None) => {
                    let is_long = |run: &Run, at| run.is_stuck(at, duration, readings);
                    let belongs = |run: &Run, value| run.value == value;
                    Memory::Run(
                        run_before(rule, start, horizon, history, belongs, is_long)
                            .map_err(|span| vec![span])?,
                    )
                }
                (Condition::Consumption { within, .. }, _) => {
                    let usage = Usage::new(counter.unwrap_or_default(), within);
                    Memory::Usage(
                        usage_before(usage, rule, start, horizon, history).map_err(|span| vec![span])?,
                    )
                }
                (_, open) => match (condition.required_hold(), open) {
                    (None, _) => Memory::Nothing,
                    (Some(_), Some(_)) => Memory::Run(None),
                    (Some(hold), None) => {
                        let is_long = |run: &Run, at| run.is_held(at, hold);
                        let belongs = |run: &Run, value| {
                            condition.is_beyond_limit(run.value) && condition.is_beyond_limit(value)
                        };
                        let run = run_before(rule, start, horizon, history, belongs, is_long)
                            .map_err(|span| vec![span])?;
                        Memory::Run(run.filter(|run| condition.is_beyond_limit(run.value)))
                    }
                },
            };
            (memory, open.map(|alarm| Excursion { upto: upto(alarm), ..alarm.resumed() }), start)
        }
    };
    Ok(Restored { judge: Judge::restored(rule.condition, counter, memory, excursion), from })
}

/// The run of readings before `start`, or so much of it that it is long enough.
///
/// `belongs` tells whether a value belongs to a run, and `is_long` whether a run that lasts until a time is long enough.
fn run_before(
    rule: &Rule,
    start: Micros,
    horizon: Micros,
    history: &History,
    belongs: impl Fn(&Run, f64) -> bool,
    is_long: impl Fn(&Run, Micros) -> bool,
) -> Result<Option<Run>, Span> {
    let mut run: Option<Run> = None;
    let mut newest = start;
    history.visit_all(rule, start, horizon, |point| {
        let Some(known) = &mut run else {
            newest = point.at;
            let begun = run.insert(Run::new(point, None));
            // A single reading that belongs to no run needs no earlier ones.
            return match belongs(begun, point.value) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
        };
        if !belongs(known, point.value) {
            known.before = Some(point.at);
            return ControlFlow::Break(());
        }
        known.since = point.at;
        known.count += 1;
        match is_long(known, newest) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    Ok(run)
}

/// The consumption until the reading at `start`, which needs all readings of its time and the one before.
fn usage_before(
    mut usage: Usage,
    rule: &Rule,
    start: Micros,
    horizon: Micros,
    history: &History,
) -> Result<Usage, Span> {
    let begin = usage.begin(start);
    let mut points = Vec::new();
    history.visit_all(rule, start, horizon, |point| {
        points.push(point);
        if point.at < begin { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    for point in points.into_iter().rev() {
        usage.advance(point);
    }
    Ok(usage)
}

impl Condition {
    fn duration(&self) -> Micros {
        match self {
            Self::RateOfChange { per: duration, .. }
            | Self::Consumption { within: duration, .. }
            | Self::Stuck { duration, .. } => *duration,
            Self::Above { hold, .. } | Self::Below { hold, .. } => hold.map_or(0, |hold| hold.duration),
            Self::Silent { .. } => 0,
        }
    }
}
