//! The state of rules with `for` after the newest reading, in the row of the series.
//!
//! It spares a batch the readings that are beyond a limit and have not been for long enough. The transaction that judges a
//! series reads it before, and writes it with the row of the series. Any other change of the series' readings makes it
//! invalid, so that the next batch reads them: a store by a worker without the rule, by its time of storing; a
//! recalibration and the judgement of what it changed, by clearing it.

use std::collections::{BTreeMap, HashMap};

use deadpool_postgres::Transaction;
use garenne_database::{Parameters, QueryResult, Tables, column};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio_postgres::types::Json;

use crate::{
    alarm::{Micros, Pending, PendingRun, Rule, Rules},
    notice::uuid,
};

/// The statements for the state of a fleet's rules, and the keys of this worker's rules in it.
pub(super) struct PendingRules {
    load: String,
    clear: String,
    /// By the rules' names. Only rules with `for` have one.
    keys: HashMap<String, String>,
}

/// The state of rules of one series, by their keys.
pub(super) type StoredPending = BTreeMap<String, StoredRun>;

/// The time of the newest reading; the time of the first reading of the run and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRun(Micros, Option<(Micros, usize)>);

/// The contents of a series' row before a change.
#[derive(Clone, Debug, Default)]
pub struct SeriesPending {
    /// When a reading was stored last. The state is written only if that is still so.
    pub stored_at: Option<OffsetDateTime>,
    /// The state of each rule.
    pub rules: StoredPending,
}

impl PendingRules {
    pub(super) fn new(tables: &Tables, rules: &Rules) -> Self {
        let load = format!(
            "SELECT s.device, s.metric, s.stored_at, CASE WHEN s.pending_at = s.stored_at THEN s.pending END
             FROM unnest($1::text[], $2::text[]) AS k(device, metric) JOIN {tables}_series AS s USING (device, metric)"
        );
        let clear = format!("UPDATE {tables}_series SET pending_at = NULL WHERE device = $1 AND metric = $2");
        // Workers with another condition under the same name do not take the state for theirs.
        let key = |rule: &Rule| {
            let key = uuid(&[&format!("{:?} {:?}", rule.condition, rule.unit.map(|unit| unit.symbol()))]);
            (rule.name.clone(), key.to_string())
        };
        let keys = rules.iter().filter(|rule| rule.condition.has_hold()).map(key).collect();
        Self { load, clear, keys }
    }

    /// The contents of the rows of series, given as device and metric.
    pub(super) async fn load(
        &self,
        transaction: &Transaction<'_>,
        series: &[(&str, &str)],
    ) -> QueryResult<HashMap<(String, String), SeriesPending>> {
        if series.is_empty() {
            return Ok(HashMap::new());
        }
        let statement = transaction.prepare_cached(&self.load).await?;
        let parameters: Parameters<'_, 2> =
            [&column(series, |(device, _)| *device), &column(series, |(_, metric)| *metric)];
        let rows = transaction.query(&statement, &parameters).await?;
        let of_row = |row: &tokio_postgres::Row| {
            // Contents that another version wrote are not known.
            let rules = row.try_get::<_, Option<Json<StoredPending>>>(3).ok().flatten();
            let rules = rules.map(|Json(rules)| rules).unwrap_or_default();
            ((row.get(0), row.get(1)), SeriesPending { stored_at: row.get(2), rules })
        };
        Ok(rows.iter().map(of_row).collect())
    }

    /// Makes the state of a series invalid.
    pub(super) async fn clear(
        &self,
        transaction: &Transaction<'_>,
        device: &str,
        metric: &str,
    ) -> QueryResult<()> {
        let statement = transaction.prepare_cached(&self.clear).await?;
        transaction.execute(&statement, &[&device, &metric]).await.map(drop)
    }

    pub(super) fn has_state(&self, rule: &Rule) -> bool {
        self.keys.contains_key(&rule.name)
    }

    /// The state of the rules of a series, by their places.
    pub(super) fn of_rules(&self, stored: &StoredPending, rules: &[&Rule]) -> Vec<(usize, Pending)> {
        let pending = |(place, rule): (usize, &&Rule)| {
            let StoredRun(upto, run) = *stored.get(self.keys.get(&rule.name)?)?;
            let run = run.map(|(since, count)| PendingRun { since, count });
            Some((place, Pending { upto, run }))
        };
        rules.iter().enumerate().filter_map(pending).collect()
    }

    /// The state of the rules of a series as it is stored.
    pub(super) fn stored(
        &self,
        pending: impl Iterator<Item = (usize, Pending)>,
        rules: &[&Rule],
    ) -> StoredPending {
        let stored = |(place, Pending { upto, run }): (usize, Pending)| {
            let key = self.keys.get(&rules.get(place)?.name)?;
            Some((key.clone(), StoredRun(upto, run.map(|PendingRun { since, count }| (since, count)))))
        };
        pending.filter_map(stored).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap()
    }

    #[test]
    fn the_state_is_kept_for_the_same_condition_only() {
        let one = "[[rule]]\nname = \"r\"\nmetric = \"m\"\nabove = 30\nfor = \"2h\"\n";
        let other = one.replace("2h", "3h");
        let plain = "[[rule]]\nname = \"plain\"\nmetric = \"m\"\nabove = 30\n";
        let (one, other) = (rules(&format!("{plain}{one}")), rules(&format!("{plain}{other}")));
        let tables = Tables::new("g");
        let known = PendingRules::new(&tables, &one);
        let of_one: Vec<_> = one.iter().collect();
        assert_eq!(of_one.iter().map(|rule| known.has_state(rule)).collect::<Vec<_>>(), [false, true]);
        let run = Some(PendingRun { since: -5, count: 7 });
        let pending = (1, Pending { upto: 9, run });
        let stored = known.stored([(0, Pending { upto: 9, run: None }), pending].into_iter(), &of_one);
        assert_eq!(stored.len(), 1);
        let json = serde_json::to_string(&stored).unwrap();
        assert!(json.ends_with(":[9,[-5,7]]}"), "{json}");
        let read: StoredPending = serde_json::from_str(&json).unwrap();
        assert_eq!(known.of_rules(&read, &of_one), [pending]);
        let of_other: Vec<_> = other.iter().collect();
        assert_eq!(PendingRules::new(&tables, &other).of_rules(&read, &of_other), []);
    }
}
