//! The outbox: follow-up tasks that are stored with the alarms that start them.
//!
//! A notice is stored in the transaction that changes the alarm, under the task that caused the change. The
//! task starts its notices before it is acked. A redelivered task reads the same notices again, with the same
//! ids.

use std::collections::HashMap;

use deadpool_postgres::Transaction;
use garenne_protocol::task::{Kind, TaskId};
use serde_json::Value;
use tokio_postgres::types::Json;

use crate::{columns::column, error::QueryResult, notice::Notice, tables::Tables};
use garenne::sink::FollowUp;

pub(super) async fn store(
    transaction: &Transaction<'_>,
    tables: &Tables,
    notices: &[Notice],
) -> QueryResult<()> {
    if notices.is_empty() {
        return Ok(());
    }
    let insert = format!(
        "INSERT INTO {tables}_notices (id, task_id, kind, payload)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) ON CONFLICT DO NOTHING"
    );
    let statement = transaction.prepare_cached(&insert).await?;
    let ids = column(notices, |notice| notice.id.as_str());
    let task_ids = column(notices, |notice| notice.task_id.as_str());
    let kinds = column(notices, |notice| notice.kind);
    let payloads = column(notices, |notice| Json(&notice.payload));
    transaction.execute(&statement, &[&ids, &task_ids, &kinds, &payloads]).await.map(drop)
}

/// The notices of these tasks by task id, from this transaction and from earlier deliveries.
pub(super) async fn load(
    transaction: &Transaction<'_>,
    tables: &Tables,
    task_ids: &[&str],
) -> QueryResult<HashMap<String, Vec<FollowUp>>> {
    let query = format!(
        "SELECT task_id, id, kind, payload FROM {tables}_notices WHERE task_id = ANY($1) ORDER BY at, id"
    );
    let statement = transaction.prepare_cached(&query).await?;
    let mut starts: HashMap<String, Vec<FollowUp>> = HashMap::new();
    for row in transaction.query(&statement, &[&task_ids]).await? {
        let (Ok(id), Ok(kind)) = (TaskId::parse(row.get(1)), Kind::parse(row.get(2))) else { continue };
        let Json(payload): Json<Value> = row.get(3);
        let start = FollowUp { id, kind, body: payload.to_string().into_bytes() };
        starts.entry(row.get(0)).or_default().push(start);
    }
    Ok(starts)
}
