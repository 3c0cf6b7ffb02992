//! Reads alarms from the workers' database.

use garenne_common::pattern::NamePattern;
use garenne_database::{Connection, QueryResult, Tables, muting};
use serde::Serialize;
use time::OffsetDateTime;
use tokio_postgres::Row;

/// Which alarms to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlarmFilter {
    /// Only open ones.
    pub(crate) open: bool,
    pub(crate) device: DeviceFilter,
    /// Any of these; all if it is empty.
    pub(crate) severities: Vec<&'static str>,
    pub(crate) limit: i64,
}

/// The devices whose alarms are listed.
#[derive(Clone, Debug, Default)]
pub(crate) enum DeviceFilter {
    #[default]
    All,
    Matching(NamePattern),
    /// The device of this name, which may end with `*`.
    Named(String),
}

/// An alarm as it is listed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AlarmView {
    pub(crate) id: String,
    pub(crate) device: String,
    pub(crate) metric: String,
    pub(crate) rule: String,
    /// The rule's condition in words; none if no worker has had the rule for a month.
    pub(crate) says: Option<String>,
    pub(crate) severity: String,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) since: OffsetDateTime,
    /// The last reading that the rule holds for.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) upto: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) ended: Option<OffsetDateTime>,
    pub(crate) value: Option<f64>,
    pub(crate) unit: Option<String>,
    /// Whether it is of a device that never sent.
    pub(crate) missing: bool,
    pub(crate) closed_reason: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) acked_at: Option<OffsetDateTime>,
    pub(crate) acked_by: Option<String>,
    /// Only while it is snoozed.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) snoozed_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) snoozed_at: Option<OffsetDateTime>,
    pub(crate) snoozed_by: Option<String>,
    pub(crate) in_maintenance: bool,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) notified_at: Option<OffsetDateTime>,
}

/// Alarms, open ones first, then the newest. Without withdrawn ones.
pub(crate) async fn alarms(
    client: &Connection,
    tables: &Tables,
    filter: &AlarmFilter,
) -> QueryResult<Vec<AlarmView>> {
    let open = if filter.open { "AND a.ended IS NULL" } else { "" };
    let (matches, device) = match &filter.device {
        DeviceFilter::All => ("$1::text IS NULL".to_owned(), None),
        DeviceFilter::Matching(pattern) => {
            (muting::device_matches("$1::text", "a.device"), Some(pattern.as_str()))
        }
        DeviceFilter::Named(name) => ("a.device = $1".to_owned(), Some(name.as_str())),
    };
    let query = format!(
        "SELECT a.id, a.device, a.metric, a.rule, r.describes, a.severity, a.since, a.upto, a.ended, a.value, r.unit,
                a.is_missing, a.closed_reason, a.acked_at, a.acked_by,
                CASE WHEN a.snoozed_until > now() THEN a.snoozed_until END, a.snoozed_at, a.snoozed_by,
                a.ended IS NULL AND {in_maintenance}, a.notified_at
         FROM {tables}_alarms AS a
         LEFT JOIN LATERAL (SELECT describes, unit FROM {tables}_rules AS known WHERE known.name = a.rule
                            ORDER BY announced_at DESC, first_seen DESC LIMIT 1) AS r ON true
         WHERE a.withdrawn_at IS NULL {open} AND {matches}
           AND (cardinality($2::text[]) = 0 OR a.severity = ANY($2))
         ORDER BY a.ended IS NULL DESC, a.since DESC LIMIT $3",
        in_maintenance = muting::is_in_maintenance(tables),
    );
    let statement = client.prepare_cached(&query).await?;
    let rows = client.query(&statement, &[&device, &filter.severities, &filter.limit]).await?;
    Ok(rows.iter().map(AlarmView::new).collect())
}

impl AlarmView {
    fn new(row: &Row) -> Self {
        Self {
            id: row.get(0),
            device: row.get(1),
            metric: row.get(2),
            rule: row.get(3),
            says: row.get(4),
            severity: row.get(5),
            since: row.get(6),
            upto: row.get(7),
            ended: row.get(8),
            value: row.get(9),
            unit: row.get(10),
            missing: row.get(11),
            closed_reason: row.get(12),
            acked_at: row.get(13),
            acked_by: row.get(14),
            snoozed_until: row.get(15),
            snoozed_at: row.get(16),
            snoozed_by: row.get(17),
            in_maintenance: row.get(18),
            notified_at: row.get(19),
        }
    }
}
