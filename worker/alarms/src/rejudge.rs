//! Judges again what was changed in the database.
//!
//! A command that changes stored readings adds a row with their times in the same transaction. A worker whose rules apply
//! to the series judges these readings as changed ones, and deletes the row in the same transaction.

use deadpool_postgres::Transaction;
use garenne_database::{QueryResult, Tables, muting::device_matches};
use time::OffsetDateTime;

use crate::{alarm_evaluator::AlarmEvaluator, micros::micros, notice::Notice, rule_registry};

/// Rows without a rule that are deleted at once, at most.
const DELETED_AT_ONCE: usize = 1000;

/// The statements for the readings of a fleet that are to be judged again.
pub(super) struct Rejudging {
    take: String,
    delete: String,
    delete_unruled: String,
}

impl Rejudging {
    pub(super) fn new(tables: &Tables) -> Self {
        let matches = device_matches("r.device", "q.device");
        let lifetime = rule_registry::RULE_LIFETIME.as_secs();
        let take = format!(
            "SELECT q.id, q.device, q.metric, q.times FROM {tables}_rejudge AS q
             WHERE EXISTS (SELECT FROM unnest($1::text[], $2::text[]) AS r(device, metric)
                           WHERE r.metric = q.metric AND {matches})
             ORDER BY q.id LIMIT 1 FOR UPDATE SKIP LOCKED"
        );
        let delete = format!("DELETE FROM {tables}_rejudge WHERE id = $1");
        let delete_unruled = format!(
            "DELETE FROM {tables}_rejudge WHERE id IN (
                 SELECT q.id FROM {tables}_rejudge AS q
                 WHERE q.at < now() - interval '{lifetime} seconds' AND NOT EXISTS (
                     SELECT FROM {tables}_rules AS r WHERE r.metric = q.metric AND {matches}
                     AND r.announced_at >= now() - interval '{lifetime} seconds')
                 LIMIT {DELETED_AT_ONCE} FOR UPDATE SKIP LOCKED)"
        );
        Self { take, delete, delete_unruled }
    }

    /// Judges the readings of the oldest row that rules of this worker apply to. Returns the notices, or [`None`] if there
    /// is no such row.
    pub(super) async fn judge_next(
        &self,
        transaction: &Transaction<'_>,
        evaluator: &AlarmEvaluator,
    ) -> QueryResult<Option<Vec<Notice>>> {
        let take = transaction.prepare_cached(&self.take).await?;
        let devices: Vec<_> = evaluator.judging_rules().map(|rule| rule.device.as_str()).collect();
        let metrics: Vec<_> = evaluator.judging_rules().map(|rule| rule.metric.as_str()).collect();
        let Some(row) = transaction.query_opt(&take, &[&devices, &metrics]).await? else { return Ok(None) };
        let times: Vec<OffsetDateTime> = row.get(3);
        let notices = evaluator
            .evaluate_again(transaction, row.get(1), row.get(2), times.into_iter().map(micros))
            .await?;
        transaction.execute(&self.delete, &[&row.get::<_, i64>(0)]).await?;
        Ok(Some(notices))
    }

    /// Deletes rows of series that no worker has a rule for.
    pub(super) async fn delete_unruled(&self, transaction: &Transaction<'_>) -> QueryResult<()> {
        transaction.execute(&self.delete_unruled, &[]).await.map(drop)
    }
}
