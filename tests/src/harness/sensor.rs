//! A sensor whose readings can be told apart, and what is stored of them.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    gateway::Gateway,
    postgres::Database,
    wait::{Seen, eventually},
};

/// A sensor that counts: every reading has a time of its own. It repeats a request that was not answered.
pub struct Sensor {
    records: usize,
    /// The number of requests.
    pub requests: usize,
    /// The ids of all accepted readings.
    pub accepted: Vec<String>,
    /// The number of answers that were marked as spooled.
    pub spooled: usize,
    /// The numbers of requests that were not answered at first.
    pub unanswered: Vec<usize>,
}

/// The time of the first reading, in seconds since 1970.
const START: usize = 1_790_000_000;

impl Sensor {
    /// A sensor that sends so many readings in each request.
    #[must_use]
    pub fn new(records: usize) -> Self {
        Self { records, requests: 0, accepted: Vec::new(), spooled: 0, unanswered: Vec::new() }
    }

    /// Sends the next request. Returns whether it was answered; only then its readings count.
    pub async fn send(&mut self, gateway: &Gateway) -> Result<bool> {
        let request = self.requests;
        self.requests += 1;
        let is_answered = self.post(gateway, request).await?;
        if !is_answered {
            self.unanswered.push(request);
        }
        Ok(is_answered)
    }

    /// Sends a request, perhaps again. Returns whether it was answered.
    pub async fn post(&mut self, gateway: &Gateway, request: usize) -> Result<bool> {
        let readings: Vec<Value> = self
            .times(request)
            .map(|time| {
                json!({"device": "d1", "metric": "temperature", "value": 20.5, "unit": "Cel", "time": time})
            })
            .collect();
        let body = Value::from(readings).to_string();
        let Ok(answer) = gateway.post("/v1/readings", "application/json", body).await else {
            return Ok(false);
        };
        self.accepted.extend(answer.ids()?);
        self.spooled += usize::from(answer.body["durability"] == "spooled");
        Ok(true)
    }

    /// The times of a request's readings, in seconds since 1970.
    pub fn times(&self, request: usize) -> impl Iterator<Item = usize> + use<> {
        let first = START + request * self.records;
        first..first + self.records
    }
}

/// The ids of the stored readings by their times. A reading that is stored twice has two.
pub async fn stored(database: &Database) -> Result<BTreeMap<usize, Vec<String>>> {
    let client = database.connect().await?;
    let query = "SELECT extract(epoch FROM time)::bigint, task_id FROM garenne_readings";
    let mut stored: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for row in client.query(query, &[]).await? {
        stored.entry(usize::try_from(row.get::<_, i64>(0))?).or_default().push(row.get(1));
    }
    Ok(stored)
}

/// Waits until so many readings are stored. In steps, because a wait is bounded.
pub async fn until_stored(database: &Database, count: usize) -> Result<()> {
    let client = database.connect().await?;
    for step in 1..=10 {
        let wanted = count * step / 10;
        eventually(format!("{wanted} stored readings"), async || {
            let stored: i64 = client.query_one("SELECT count(*) FROM garenne_readings", &[]).await?.get(0);
            Ok(Seen::when(usize::try_from(stored)? >= wanted, stored))
        })
        .await?;
    }
    Ok(())
}
