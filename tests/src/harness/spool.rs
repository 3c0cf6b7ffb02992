//! The spools of gateways and bridges.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    process::Program,
    wait::{Seen, eventually},
};

/// The output of `spool show --json`.
pub async fn spool_summary(spool: &Path) -> Result<Value> {
    let show = Program::new("garenne-producer").arg("spool").arg("show").arg(spool).arg("--json");
    Ok(serde_json::from_str(&show.run().await?.stdout.join(""))?)
}

/// The number of records that wait in a spool.
pub async fn spool_records(spool: &Path) -> Result<usize> {
    let records = spool_summary(spool).await?["records"].as_u64().context("a number of records")?;
    Ok(usize::try_from(records)?)
}

/// Waits until the number of records that wait in a spool is the wanted one.
pub async fn until_spooled(spool: &Path, wanted: impl Fn(usize) -> bool) -> Result<()> {
    eventually("the wanted number of records in the spool", async || {
        let records = spool_records(spool).await?;
        Ok(Seen::when(wanted(records), records))
    })
    .await
}
