//! The parameters of `/v1/readings`, and their limits.

use std::time::{Duration, SystemTime};

use garenne_protocol::sensor::Timestamp;
use serde::Deserialize;
use time::OffsetDateTime;

use super::format::Format;

/// Rows of an answer, at most.
pub(super) const MAX_ROWS: u32 = 100_000;
/// Buckets of an answer, at most.
const MAX_BUCKETS: i64 = 10_000;
/// Readings that buckets are computed from, at most, where there are no rollups.
pub(super) const MAX_READINGS: i64 = 1_000_000;
/// The period without `from`.
const DEFAULT_PERIOD: time::Duration = time::Duration::DAY;
/// 2001-01-01, a Monday: where buckets are counted from, in Unix seconds.
const ORIGIN: i64 = 978_307_200;
const HOUR: u64 = 3_600;

/// The parameters as given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::dashboard) struct Parameters {
    pub(super) device: String,
    pub(super) metric: String,
    from: Option<String>,
    to: Option<String>,
    step: Option<String>,
    limit: Option<u32>,
    pub(super) format: Option<Format>,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadingsQuery {
    pub(super) device: String,
    pub(super) metric: String,
    pub(super) from: OffsetDateTime,
    /// Not part of the period.
    pub(super) to: OffsetDateTime,
    pub(super) step: Option<Step>,
    /// The rows of a page, if the request asks for pages.
    pub(super) limit: Option<u32>,
}

/// The length of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) seconds: u64,
    pub(super) source: Source,
}

/// The table that buckets are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Readings,
    /// Hourly rollups, for whole hours.
    Hours,
    /// Daily rollups, for whole days.
    Days,
}

impl ReadingsQuery {
    pub(super) fn new(parameters: &Parameters, now: SystemTime) -> Result<Self, String> {
        let Parameters { device, metric, from, to, step, limit, .. } = parameters;
        for (name, value) in [("device", device), ("metric", metric)] {
            if value.is_empty() || value.contains('\0') {
                return Err(format!("{name}: expected a name"));
            }
        }
        let to = to.as_deref().map_or(Ok(now.into()), |to| instant("to", to))?;
        let earliest = to.checked_sub(DEFAULT_PERIOD).unwrap_or(to);
        let from = from.as_deref().map_or(Ok(earliest), |from| instant("from", from))?;
        if from >= to {
            let [from, to] = [from, to].map(Timestamp::from);
            return Err(format!("to: {to} is not after from ({from})"));
        }
        let step = step.as_deref().map(length).transpose()?;
        if let Some(limit) = limit {
            if !(1..=MAX_ROWS).contains(limit) {
                return Err(format!("limit: {limit}; expected 1 to {MAX_ROWS}"));
            }
            if step.is_some() {
                return Err("limit: pages are for readings, and step asks for buckets".to_owned());
            }
        }
        let (from, to) = match step {
            Some(Step { seconds, .. }) => whole_buckets(from, to, seconds)?,
            None => (from, to),
        };
        Ok(Self { device: device.clone(), metric: metric.clone(), from, to, step, limit: *limit })
    }

    /// The series and the period, for error messages.
    pub(super) fn what(&self) -> String {
        let [from, to] = [self.from, self.to].map(Timestamp::from);
        format!("{} {} from {from} to {to}", self.device, self.metric)
    }
}

/// A time: RFC 3339, or Unix seconds.
fn instant(name: &str, text: &str) -> Result<OffsetDateTime, String> {
    // A plus sign that was not escaped is a space in a query.
    let text = text.replacen(' ', "+", usize::from(text.contains('T')));
    let time = match text.parse() {
        Ok(seconds) => Timestamp::from_unix_seconds(seconds),
        Err(_) => Timestamp::parse(&text),
    };
    time.map(Into::into).map_err(|error| format!("{name}: {text:?}: {error}"))
}

fn length(text: &str) -> Result<Step, String> {
    let expected = "expected a duration of whole seconds such as 5m, 1h or 1d";
    let step: Duration =
        humantime::parse_duration(text).map_err(|_| format!("step: {text:?}; {expected}"))?;
    let seconds = step.as_secs();
    if seconds == 0 || step.subsec_nanos() > 0 || i64::try_from(seconds).is_err() {
        return Err(format!("step: {text:?}; {expected}"));
    }
    let source = match seconds {
        _ if seconds.is_multiple_of(24 * HOUR) => Source::Days,
        _ if seconds.is_multiple_of(HOUR) => Source::Hours,
        _ => Source::Readings,
    };
    Ok(Step { seconds, source })
}

/// The period of the buckets that have a part of a period.
fn whole_buckets(
    from: OffsetDateTime,
    to: OffsetDateTime,
    seconds: u64,
) -> Result<(OffsetDateTime, OffsetDateTime), String> {
    let step = i64::try_from(seconds).expect("it was checked");
    let first = (from.unix_timestamp() - ORIGIN).div_euclid(step);
    let last = (to - time::Duration::MICROSECOND).unix_timestamp();
    let end = (last - ORIGIN).div_euclid(step) + 1;
    if end - first > MAX_BUCKETS {
        let count = end - first;
        return Err(format!(
            "step: {seconds} s gives {count} buckets, at most {MAX_BUCKETS}: give a longer step or a shorter period"
        ));
    }
    let time = |bucket: i64| {
        let seconds = bucket.checked_mul(step).and_then(|seconds| seconds.checked_add(ORIGIN));
        seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
    };
    let times = time(first).zip(time(end));
    times.ok_or_else(|| format!("step: buckets of {seconds} s reach beyond the years 0000 to 9999"))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn query(parameters: &str) -> Result<ReadingsQuery, String> {
        let url = format!("http://h/?device=d&metric=m&{parameters}").parse().unwrap();
        let parameters = axum::extract::Query::try_from_uri(&url).map_err(|error| error.body_text())?;
        ReadingsQuery::new(&parameters, datetime!(2026-11-24 12:30 UTC).into())
    }

    #[test]
    fn periods_are_whole_buckets() {
        let period = |parameters: &str| query(parameters).map(|query| (query.from, query.to));
        let day = (datetime!(2026-11-23 12:30 UTC), datetime!(2026-11-24 12:30 UTC));
        assert_eq!(period(""), Ok(day));
        assert_eq!(period("to=2026-11-24T13:30:00+01:00"), Ok(day));
        assert_eq!(period("from=1795437000"), Ok(day));
        let wanted = (datetime!(2026-11-23 12:00 UTC), datetime!(2026-11-24 13:00 UTC));
        assert_eq!(period("step=1h"), Ok(wanted));
        // Weeks begin on Mondays.
        let wanted = (datetime!(2026-11-23 0:00 UTC), datetime!(2026-11-30 0:00 UTC));
        assert_eq!(period("step=7d&to=2026-11-30T00:00:00Z&from=2026-11-29T00:00:00Z"), Ok(wanted));
    }

    #[test]
    fn the_step_chooses_the_rollups() {
        let source = |step: &str| query(&format!("step={step}")).unwrap().step.unwrap().source;
        assert_eq!(
            ["90s", "1h", "6h", "25h", "2d"].map(source),
            [Source::Readings, Source::Hours, Source::Hours, Source::Hours, Source::Days]
        );
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_name() {
        for (parameters, problem) in [
            ("from=yesterday", "from: \"yesterday\": "),
            ("from=2026-11-24T12:30:00Z", "to: 2026-11-24T12:30:00Z is not after from"),
            ("step=0s", "step: \"0s\"; expected a duration of whole seconds"),
            ("step=1500ms", "step: \"1500ms\"; expected"),
            (
                "step=1s",
                "step: 1 s gives 86400 buckets, at most 10000: give a longer step or a shorter period",
            ),
            ("limit=100001", "limit: 100001; expected 1 to 100000"),
            ("limit=5&step=1h", "limit: pages are for readings"),
            ("step=300000y", "step: "),
            ("metrics=x", "Failed to deserialize query string: metrics: unknown field `metrics`"),
            ("format=xml", "Failed to deserialize query string: "),
        ] {
            let error = query(parameters).unwrap_err();
            assert!(error.starts_with(problem), "{parameters}: {error}");
        }
    }
}
