//! Benchmarks of worker processes, Garenne's and those of other libraries, on the same tasks.
//!
//! `./dev bench worker|start|memory|growth|shards|end-to-end|forwarding|bridge [--rounds N] [--json FILE] …`; each module describes its
//! measurement. Every contestant is a separate process, so that its CPU time and memory can be measured. Contestants
//! run in turns, so that other load on the machine affects all of them equally.

#[path = "fleet/bridge.rs"]
mod bridge;
#[path = "fleet/broker.rs"]
mod broker;
#[path = "fleet/end_to_end.rs"]
mod end_to_end;
#[path = "fleet/forwarding.rs"]
mod forwarding;
#[path = "fleet/garenne.rs"]
mod garenne;
#[path = "fleet/growth.rs"]
mod growth;
#[path = "fleet/memory.rs"]
mod memory;
#[path = "fleet/mqtt.rs"]
mod mqtt;
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
    // Cargo adds its own arguments after this one.
    match std::env::args().nth(1).as_deref() {
        Some("worker") => worker::run(&mut rows).await?,
        Some("start") => start::run(&mut rows).await?,
        Some("memory") => memory::run(&mut rows).await?,
        Some("shards") => shards::run(&mut rows).await?,
        Some("growth") => growth::run(&mut rows).await?,
        Some("end-to-end") => end_to_end::run(&mut rows).await?,
        Some("forwarding") => forwarding::run(&mut rows).await?,
        Some("bridge") => bridge::run(&mut rows).await?,
        other => bail!(
            "unknown benchmark {other:?}; expected worker, start, memory, growth, shards, end-to-end, forwarding or bridge"
        ),
    }
    rows.publish()?;
    Ok(())
}
