//! The parameters of `/v1/readings`, and their limits.

use std::time::SystemTime;

use garenne_protocol::sensor::Timestamp;
use serde::Deserialize;
use time::OffsetDateTime;

use super::{
    format::Format,
    step::{Buckets, Step},
};

/// Rows of an answer, at most.
pub(super) const MAX_ROWS: u32 = 100_000;
/// Readings that buckets are computed from, at most, where there are no rollups.
pub(super) const MAX_READINGS: i64 = 1_000_000;
/// The period without `from`.
const DEFAULT_PERIOD: time::Duration = time::Duration::DAY;

/// The parameters as given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::dashboard) struct Parameters {
    pub(super) device: String,
    pub(super) metric: String,
    from: Option<String>,
    to: Option<String>,
    step: Option<String>,
    zone: Option<String>,
    limit: Option<u32>,
    pub(super) format: Option<Format>,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReadingsQuery {
    pub(super) device: String,
    pub(super) metric: String,
    pub(super) from: OffsetDateTime,
    /// Not part of the period.
    pub(super) to: OffsetDateTime,
    pub(super) buckets: Option<Buckets>,
    /// The rows of a page, if the request asks for pages.
    pub(super) limit: Option<u32>,
}

impl ReadingsQuery {
    pub(super) fn new(parameters: &Parameters, now: SystemTime) -> Result<Self, String> {
        let Parameters { device, metric, from, to, step, zone, limit, .. } = parameters;
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
        let step = step.as_deref().map(|step| Step::parse(step, zone.as_deref())).transpose()?;
        if step.is_none() && zone.is_some() {
            return Err("zone: needs a step of days, weeks, months or years".to_owned());
        }
        if let Some(limit) = limit {
            if !(1..=MAX_ROWS).contains(limit) {
                return Err(format!("limit: {limit}; expected 1 to {MAX_ROWS}"));
            }
            if step.is_some() {
                return Err("limit: pages are for readings, and step asks for buckets".to_owned());
            }
        }
        let buckets = step.map(|step| step.buckets(from, to)).transpose()?;
        let (from, to) = buckets.as_ref().map_or((from, to), Buckets::period);
        Ok(Self { device: device.clone(), metric: metric.clone(), from, to, buckets, limit: *limit })
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
        let wanted = (datetime!(2026-10-31 23:00 UTC), datetime!(2026-11-30 23:00 UTC));
        assert_eq!(period("step=1month&zone=Europe/Berlin"), Ok(wanted));
        let wanted = (datetime!(2026-11-23 0:00 UTC), datetime!(2026-11-30 0:00 UTC));
        assert_eq!(period("step=7d&to=2026-11-30T00:00:00Z&from=2026-11-29T00:00:00Z"), Ok(wanted));
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
            ("zone=UTC", "zone: needs a step of days, weeks, months or years"),
            ("step=1d&zone=x", "zone: \"x\"; expected a zone such as Europe/Berlin"),
            ("metrics=x", "Failed to deserialize query string: metrics: unknown field `metrics`"),
            ("format=xml", "Failed to deserialize query string: "),
        ] {
            let error = query(parameters).unwrap_err();
            assert!(error.starts_with(problem), "{parameters}: {error}");
        }
    }
}
