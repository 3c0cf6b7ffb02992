//! Checks the numbers of a reading's plan.

use garenne_protocol::sensor::{Counter, parse::check_unit};

use crate::plan::{Name, ReadingPlan, UnitPlan};

/// The counter that an entry says, else the default.
pub(super) fn counter_plan(
    (is_counter, wraps_at, max_per_hour): (Option<bool>, Option<f64>, Option<f64>),
    default: Option<Counter>,
) -> Result<Option<Counter>, String> {
    let counter = Counter { wraps_at, max_per_hour };
    counter.check_in_file(is_counter)?;
    Ok(is_counter.map_or(default, |is_counter| is_counter.then_some(counter)))
}

/// Refuses a plan that cannot be right for any payload.
pub(super) fn check_plan(plan: &ReadingPlan) -> Result<(), String> {
    // A counter that restarts must restart at zero.
    if plan.counter.is_some() && (plan.offset != 0.0 || plan.scale <= 0.0) {
        return Err("counter: only a scale above 0 is allowed, without offset".to_owned());
    }
    match (&plan.metric, &plan.unit) {
        (Name::Constant(metric), UnitPlan::Constant(unit)) => {
            check_unit("unit", Some(*unit), metric).map_err(|error| error.in_record(0).message)
        }
        _ => Ok(()),
    }
}

pub(super) fn finite(field: &str, number: f64) -> Result<f64, String> {
    if number.is_finite() { Ok(number) } else { Err(format!("{field}: {number} is not a finite number")) }
}
