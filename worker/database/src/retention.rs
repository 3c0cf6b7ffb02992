//! How long readings, their rollups and results are kept, by rules in TOML. [`prune`](crate::prune) removes older ones.
//!
//! ```toml
//! results = "30d"          # rows of the table of results
//!
//! [[retention]]            # the first rule that matches a reading holds; one without a rule is kept
//! device = "lab-*"         # a name, or a prefix and a star; default: every device
//! metric = "vibration"     # as above; default: every metric
//! keep   = "30d"           # readings
//! keep_hours = "2years"    # their hourly rollups; default: for ever
//!
//! [[retention]]
//! keep = "3years"
//! keep_days = "30years"    # their daily rollups; default: for ever
//! ```

use std::time::{Duration, SystemTime};

use garenne_common::{config::parse_toml, pattern::NamePattern};
use serde::Deserialize;
use time::OffsetDateTime;
use tokio_postgres::Client;

use crate::{
    error::{DatabaseError, QueryResult},
    pool::{Connection, PostgresPool},
    tables::Tables,
};

/// How long readings and results are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long results are kept; [`None`] for ever.
    results: Option<Duration>,
    /// The rules for readings. The first one that matches holds.
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    device: NamePattern,
    metric: NamePattern,
    keep: Duration,
    keep_hours: Option<Duration>,
    keep_days: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionFile {
    #[serde(default, with = "humantime_serde")]
    results: Option<Duration>,
    #[serde(default)]
    retention: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    #[serde(default = "everything")]
    device: String,
    #[serde(default = "everything")]
    metric: String,
    #[serde(with = "humantime_serde")]
    keep: Duration,
    #[serde(default, with = "humantime_serde")]
    keep_hours: Option<Duration>,
    #[serde(default, with = "humantime_serde")]
    keep_days: Option<Duration>,
}

fn everything() -> String {
    "*".to_owned()
}

/// Something that a policy no longer keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The rows that go.
    pub what: ExpiredRows,
    /// The number of rows when they were counted.
    pub rows: u64,
}

/// Rows that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpiredRows {
    /// A partition: every reading in it is too old.
    Partition {
        /// The name of the partition's table.
        name: String,
        /// The end of the time that it covers, exclusive.
        until: OffsetDateTime,
    },
    /// Rows of a device and metric before a time.
    Series {
        /// Which rows.
        table: SeriesTable,
        /// The device.
        device: String,
        /// The metric.
        metric: String,
        /// Older ones go.
        before: OffsetDateTime,
    },
    /// Results of tasks that started before a time.
    Results {
        /// Older ones go.
        before: OffsetDateTime,
    },
}

/// A table with rows by device, metric and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesTable {
    /// Readings.
    Readings,
    /// Hourly rollups.
    Hours,
    /// Daily rollups.
    Days,
}

impl SeriesTable {
    /// Whole hours or days are removed, so that no rollup is computed from a part of its readings or hours.
    fn step(self) -> time::Duration {
        match self {
            Self::Readings => time::Duration::HOUR,
            Self::Hours | Self::Days => time::Duration::DAY,
        }
    }

    /// The end of the table's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Readings => "readings",
            Self::Hours => "rollups_hour",
            Self::Days => "rollups_day",
        }
    }
}

impl Retention {
    /// Parses a policy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let RetentionFile { results, retention } = parse_toml(text)?;
        let rule = |(number, entry)| {
            Rule::from_entry(entry).map_err(|problem| format!("retention {number}: {problem}"))
        };
        let rules = (1..).zip(retention).map(rule).collect::<Result<_, _>>()?;
        Ok(Self { results, rules })
    }

    /// The rule for a device's metric; [`None`] if it is kept for ever.
    fn rule(&self, device: &str, metric: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.device.matches(device) && rule.metric.matches(metric))
    }

    /// Stored rows that the policy no longer keeps. Whole partitions come first.
    pub async fn expired(&self, pool: &PostgresPool, tables: &Tables) -> Result<Vec<Expired>, DatabaseError> {
        let client = maintenance(pool).await?;
        let now = SystemTime::now();
        let series =
            client.query(&format!("SELECT device, metric FROM {tables}_series ORDER BY 1, 2"), &[]).await?;
        let series: Vec<(String, String)> = series.iter().map(|row| (row.get(0), row.get(1))).collect();
        let rules: Vec<_> = series.iter().map(|(device, metric)| self.rule(device, metric)).collect();
        let cutoff = |table: SeriesTable, keep| whole(before(now, keep), table.step());
        // Up to here readings of every series are too old; never, if one of them is kept for ever.
        let keep = rules.iter().map(|rule| rule.map(|rule| rule.keep)).collect::<Option<Vec<_>>>();
        let longest = keep.and_then(|keep| keep.into_iter().max());
        let mut expired = match longest {
            Some(keep) => expired_partitions(&client, tables, cutoff(SeriesTable::Readings, keep)).await?,
            None => Vec::new(),
        };
        let name = |expired: &Expired| match &expired.what {
            ExpiredRows::Partition { name, .. } => Some(name.clone()),
            _ => None,
        };
        let partitions: Vec<_> = expired.iter().filter_map(name).collect();
        for ((device, metric), rule) in series.iter().zip(rules) {
            let Some(Rule { keep, keep_hours, keep_days, .. }) = rule else { continue };
            let tables_kept = [
                (SeriesTable::Readings, Some(*keep)),
                (SeriesTable::Hours, *keep_hours),
                (SeriesTable::Days, *keep_days),
            ];
            for (table, keep) in tables_kept {
                let Some(before) = keep.map(|keep| cutoff(table, keep)) else { continue };
                let count = format!(
                    "SELECT count(*) FROM {tables}_{} WHERE device = $1 AND metric = $2 AND time < $3
                     AND tableoid <> ALL (SELECT to_regclass(name)::oid FROM unnest($4::text[]) AS name)",
                    table.name()
                );
                let count = client.prepare_cached(&count).await?;
                let rows = client.query_one(&count, &[device, metric, &before, &partitions]).await?;
                let rows = unsigned(rows.get(0));
                let (device, metric) = (device.clone(), metric.clone());
                expired.push(Expired { what: ExpiredRows::Series { table, device, metric, before }, rows });
            }
        }
        if let Some(keep) = self.results {
            let before = before(now, keep);
            let count = format!("SELECT count(*) FROM {tables}_results WHERE started_at < $1");
            let rows = unsigned(client.query_one(&count, &[&before]).await?.get(0));
            expired.push(Expired { what: ExpiredRows::Results { before }, rows });
        }
        expired.retain(|expired| expired.rows > 0 || matches!(expired.what, ExpiredRows::Partition { .. }));
        Ok(expired)
    }
}

impl Rule {
    fn from_entry(entry: RuleEntry) -> Result<Self, String> {
        let RuleEntry { device, metric, keep, keep_hours, keep_days } = entry;
        let pattern =
            |field: &str, text: &str| NamePattern::parse(text).map_err(|error| format!("{field}: {error}"));
        let (device, metric) = (pattern("device", &device)?, pattern("metric", &metric)?);
        if keep.is_zero() {
            return Err("keep must be longer than 0".to_owned());
        }
        let longest = keep_hours.unwrap_or(Duration::MAX);
        if keep_hours.is_some_and(|hours| hours < keep) || keep_days.is_some_and(|days| days < longest) {
            return Err(
                "expected keep <= keep_hours <= keep_days; one that is not given is for ever".to_owned()
            );
        }
        Ok(Self { device, metric, keep, keep_hours, keep_days })
    }
}

/// The partitions that end before `until` and contain only readings of known series. Without those that have readings of
/// which no rollup can be computed: the rows of other series go one by one.
async fn expired_partitions(
    client: &Client,
    tables: &Tables,
    until: OffsetDateTime,
) -> QueryResult<Vec<Expired>> {
    let ends = format!(
        "SELECT child.oid::regclass::text, upper::timestamptz
         FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid,
         LATERAL substring(pg_get_expr(child.relpartbound, child.oid) FROM 'TO \\(''([^'']+)''\\)') AS upper
         WHERE inhparent = to_regclass('{tables}_readings') AND upper::timestamptz <= $1
         AND NOT EXISTS (SELECT FROM {tables}_series AS s WHERE s.rollup_error IS NOT NULL
                         AND s.stale && tstzrange(NULL, upper::timestamptz))
         ORDER BY upper::timestamptz"
    );
    let mut expired = Vec::new();
    for row in client.query(&ends, &[&until]).await? {
        let name: String = row.get(0);
        let unknown = format!(
            "SELECT EXISTS (SELECT FROM {name} AS r WHERE NOT EXISTS (
                 SELECT FROM {tables}_series AS s WHERE s.device = r.device AND s.metric = r.metric))"
        );
        if !client.query_one(&unknown, &[]).await?.get::<_, bool>(0) {
            let rows = client.query_one(&format!("SELECT count(*) FROM {name}"), &[]).await?;
            let what = ExpiredRows::Partition { name, until: row.get(1) };
            expired.push(Expired { what, rows: unsigned(rows.get(0)) });
        }
    }
    Ok(expired)
}

/// A connection whose statements may take long, but do not wait long for a table in use.
pub(crate) async fn maintenance(pool: &PostgresPool) -> Result<Connection, DatabaseError> {
    let client = pool.client().await?;
    client.batch_execute("SET statement_timeout = '1h'; SET lock_timeout = '10s'").await?;
    Ok(client)
}

fn before(now: SystemTime, keep: Duration) -> OffsetDateTime {
    now.checked_sub(keep).map_or(OffsetDateTime::UNIX_EPOCH, OffsetDateTime::from)
}

/// The time, without what is more than whole hours or days since 1970.
fn whole(time: OffsetDateTime, step: time::Duration) -> OffsetDateTime {
    let seconds = time.unix_timestamp();
    time::OffsetDateTime::from_unix_timestamp(seconds - seconds.rem_euclid(step.whole_seconds()))
        .unwrap_or(time)
}

pub(crate) fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_holds() {
        let policy = Retention::parse(
            "results = \"1d\"\n[[retention]]\ndevice = \"lab-*\"\nmetric = \"vibration\"\nkeep = \"30d\"\n\
             [[retention]]\nmetric = \"temperature\"\nkeep = \"1year\"\n",
        )
        .unwrap();
        let days = |device, metric| policy.rule(device, metric).map(|rule| rule.keep.as_secs() / 86_400);
        assert_eq!(days("lab-1", "vibration"), Some(30));
        assert_eq!(days("lab-1", "temperature"), Some(365));
        assert_eq!(days("hall", "vibration"), None);
        assert_eq!(policy.results, Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn whole_hours_and_days_are_removed() {
        let time = time::macros::datetime!(2026-11-24 12:59:59.9 UTC);
        assert_eq!(whole(time, SeriesTable::Readings.step()), time::macros::datetime!(2026-11-24 12:00 UTC));
        assert_eq!(whole(time, SeriesTable::Hours.step()), time::macros::datetime!(2026-11-24 0:00 UTC));
    }

    #[test]
    fn an_invalid_rule_is_refused_with_its_number() {
        for (text, problem) in [
            (
                "device = \"a*b\"\nkeep = \"1d\"",
                "retention 1: device: \"a*b\"; expected a name, or a prefix and \"*\" at its end",
            ),
            ("keep = \"0s\"", "retention 1: keep must be longer than 0"),
            (
                "keep = \"2d\"\nkeep_hours = \"1d\"",
                "retention 1: expected keep <= keep_hours <= keep_days; one that is not given is for ever",
            ),
            (
                "keep = \"1d\"\nkeep_days = \"9d\"",
                "retention 1: expected keep <= keep_hours <= keep_days; one that is not given is for ever",
            ),
        ] {
            assert_eq!(Retention::parse(&format!("[[retention]]\n{text}")).unwrap_err(), problem);
        }
        assert!(Retention::parse("[[retention]]\nfor = \"1d\"").is_err());
    }
}
