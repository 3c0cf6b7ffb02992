//! Units of readings: every door reads the same ones, and a series has one, however its senders write it.

use anyhow::Result;
use garenne_tests::harness::{
    gateway::GatewayPlan,
    postgres::Postgres,
    test_env::TestEnv,
    wait::{Seen, eventually},
};
use serde_json::json;

use super::database::{reading, storing};

#[tokio::test]
async fn a_unit_in_several_spellings_is_one() -> Result<()> {
    let env = TestEnv::new().await?;
    let database = Postgres::shared().await?.database().await?;
    let gateway = GatewayPlan::new(&env)?.start().await?;
    let worker = storing(&env, "storing", &database.url())?.start().await?;
    let units = ["°C", "degC", "℃", "Cel"];
    let one = |device: &str, metric: &str, second: usize, unit: &str| {
        let time = format!("2026-01-01T00:00:{second:02}Z");
        json!({"device": device, "metric": metric, "value": 21, "unit": unit, "time": time})
    };
    let mut body: Vec<_> =
        (0..).zip(units).map(|(second, unit)| one("d1", "temperature", second, unit)).collect();
    body.extend(["L/min", "l/min"].iter().map(|unit| one(unit, "flow", 0, unit)));
    body.extend(["MB", "MiB", "GiB", "KiB"].iter().map(|unit| one(unit, "memory", 0, unit)));
    let count = body.len();
    let accepted = gateway.post("/v1/readings", "application/json", json!(body).to_string()).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    // 2026-01-01T00:00:10Z to 13.
    let lines = (10..).zip(units).map(|(second, unit)| {
        format!("temperature,device=d1,unit={unit} value=22 17672256{second:02}000000000\n")
    });
    let written = gateway.post("/api/v2/write", "text/plain", lines.collect::<String>()).await?;
    assert_eq!(written.status, 204, "{}", written.body);
    eventually("all readings stored".to_owned(), async || {
        let stored = database.text("SELECT count(*) FROM garenne_readings").await?;
        Ok(Seen::when(stored == (count + units.len()).to_string(), stored))
    })
    .await?;
    let stored = "SELECT string_agg(concat_ws(' ', device, metric, unit, count), ', ' ORDER BY device COLLATE \"C\", unit)
                  FROM (SELECT device, metric, unit, count(*) FROM garenne_readings GROUP BY 1, 2, 3) AS r";
    let expected = "GiB memory GiB 1, KiB memory KiB 1, L/min flow l/min 1, MB memory MB 1, MiB memory MiB 1, \
                    d1 temperature Cel 8, l/min flow l/min 1";
    assert_eq!(database.text(stored).await?, expected);

    // A row of an earlier version has the spelling. The same reading again is none that contradicts it.
    let client = database.connect().await?;
    client.batch_execute("UPDATE garenne_readings SET raw_unit = '°C' WHERE device = 'd1'").await?;
    reading(&env, "again", "2026-01-01T00:00:00Z", 21.0).await?;
    reading(&env, "other", "2026-01-01T00:00:01Z", 23.0).await?;
    assert_eq!(env.take_all("garenne.dead", 1).await?[0].id(), "other");
    assert_eq!(worker.stop().await?.receipt.dead, 1);
    Ok(())
}
