//! Workers as they are run, and others' workers on the same tasks.
//!
//! `./dev bench worker|start|memory|growth|shards|end-to-end [--rounds N] [--json FILE] …`; each module says what it
//! measures. Every contestant is a process of its own, so that its processor time and memory are its own, and
//! contestants run in turns, so that whatever else the machine does meets each alike.

#[path = "fleet/broker.rs"]
mod broker;
#[path = "fleet/end_to_end.rs"]
mod end_to_end;
#[path = "fleet/garenne.rs"]
mod garenne;
#[path = "fleet/growth.rs"]
mod growth;
#[path = "fleet/memory.rs"]
mod memory;
#[path = "fleet/race.rs"]
mod race;
#[path = "fleet/rival.rs"]
mod rival;
#[path = "fleet/shards.rs"]
mod shards;
#[path = "fleet/start.rs"]
mod start;
#[path = "fleet/worker.rs"]
mod worker;

use anyhow::{Result, bail};
use garenne_bench::Rows;

#[tokio::main]
async fn main() -> Result<()> {
    let mut rows = Rows::default();
    // Cargo puts words of its own behind ours.
    match std::env::args().nth(1).as_deref() {
        Some("worker") => worker::run(&mut rows).await?,
        Some("start") => start::run(&mut rows).await?,
        Some("memory") => memory::run(&mut rows).await?,
        Some("shards") => shards::run(&mut rows).await?,
        Some("growth") => growth::run(&mut rows).await?,
        Some("end-to-end") => end_to_end::run(&mut rows).await?,
        other => {
            bail!("which benchmark? worker, start, memory, growth, shards or end-to-end, not {other:?}")
        }
    }
    rows.publish()?;
    Ok(())
}
