//! Readings read back: a stretch of time of one device and metric.

use garenne_protocol::sensor::Timestamp;
use time::OffsetDateTime;

use super::{Database, PostgresError, Tables, explain, server::Server};

/// Reads what the sink stored. Connects when it is first asked.
pub struct StoredReadings {
    server: Server,
    query: String,
}

impl StoredReadings {
    /// The readings of the fleet with this prefix.
    ///
    /// # Errors
    /// [`PostgresError::Url`].
    pub fn new(database: Database, prefix: &str) -> Result<Self, PostgresError> {
        let query = format!(
            "SELECT time, value FROM {} WHERE device = $1 AND metric = $2 AND time >= $3 AND time < $4 ORDER BY time",
            Tables::new(prefix).readings
        );
        Ok(Self { server: Server::new(database)?, query })
    }

    /// Times and values from the first instant up to but not including the second.
    ///
    /// # Errors
    /// What Postgres or the way there says; it may pass.
    pub async fn window(
        &self,
        device: &str,
        metric: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<(Vec<Timestamp>, Vec<Option<f64>>), String> {
        let client = self.server.client().await.map_err(|setback| setback.detail)?;
        let statement = client.prepare_cached(&self.query).await.map_err(|e| explain(&e))?;
        let (from, to) = (instant(from)?, instant(to)?);
        let rows =
            client.query(&statement, &[&device, &metric, &from, &to]).await.map_err(|e| explain(&e))?;
        rows.iter()
            .map(|row| {
                let micros = row.get::<_, OffsetDateTime>(0).unix_timestamp_nanos() / 1000;
                let time = i64::try_from(micros).map_err(|error| error.to_string())?;
                Ok((Timestamp::from_micros(time).map_err(|error| error.to_string())?, Some(row.get(1))))
            })
            .collect()
    }
}

fn instant(time: Timestamp) -> Result<OffsetDateTime, String> {
    let nanos = i128::from(time.as_micros()) * 1000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|error| error.to_string())
}
