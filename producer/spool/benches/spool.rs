//! How many records a second a spool accepts and drains.
//!
//! `cargo bench -p garenne-spool --bench spool -- [--json FILE] [--rounds N] [--directory DIR]`; DIR is on the disk to
//! measure, the system's temporary directory otherwise. Each row is named after the number of concurrent appenders and
//! of records in a request; a record has 120 bytes, as a reading has.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::try_join_all;
use garenne_bench::{Rows, number, option};
use garenne_common::config::Size;
use garenne_spool::{Record, Spool, SpoolConfig};
use tokio::runtime::{Builder, Runtime};

const APPENDERS: [usize; 3] = [1, 16, 256];
const BATCHES: [usize; 3] = [1, 10, 500];
/// How long each combination runs.
const RUN: Duration = Duration::from_secs(1);
/// Records read and acknowledged at once while draining.
const DRAIN_BATCH: usize = 500;

const CONFIG: SpoolConfig = SpoolConfig {
    max_bytes: Size::mib(1024),
    max_age: Duration::from_secs(3600),
    min_free: Size::mib(64),
    segment_bytes: Size::mib(8),
};

fn records(count: usize) -> Vec<Record> {
    let record = |index| Record { id: format!("{index:036}"), time: SystemTime::now(), body: vec![b'x'; 84] };
    (0..count).map(record).collect()
}

/// Appends from so many callers until the time is up. Returns the number of records.
async fn append(spool: &Spool, appenders: usize, batch: usize) -> Result<u64, garenne_spool::SpoolError> {
    let end = Instant::now() + RUN;
    let callers = (0..appenders).map(|_| async move {
        let mut accepted = 0;
        while Instant::now() < end {
            spool.append(records(batch)).await?;
            accepted += batch as u64;
        }
        Ok(accepted)
    });
    Ok(try_join_all(callers).await?.into_iter().sum())
}

/// Reads and acknowledges everything.
async fn drain(spool: &Spool) -> Result<(), garenne_spool::SpoolError> {
    let mut from = 0;
    loop {
        let batch = spool.read(from, DRAIN_BATCH, 1 << 20).await?;
        if batch.end == from {
            return Ok(());
        }
        spool.ack(batch.end).await?;
        from = batch.end;
    }
}

fn measure(runtime: &Runtime, directory: &Path, rows: &mut Rows) -> io::Result<()> {
    for appenders in APPENDERS {
        for batch in BATCHES {
            let folder = tempfile::tempdir_in(directory)?;
            let path = folder.path();
            runtime.block_on(async {
                let spool = Spool::open(path, CONFIG).await.map_err(io::Error::other)?;
                let began = Instant::now();
                let accepted = append(&spool, appenders, batch).await.map_err(io::Error::other)?;
                let rate = accepted as f64 / began.elapsed().as_secs_f64();
                rows.add(format!("spool/append/{appenders}x{batch}/records_per_s"), "1/s", rate);
                if (appenders, batch) == (256, 10) {
                    let began = Instant::now();
                    drain(&spool).await.map_err(io::Error::other)?;
                    let rate = accepted as f64 / began.elapsed().as_secs_f64();
                    rows.add(format!("spool/drain/{DRAIN_BATCH}/records_per_s"), "1/s", rate);
                }
                spool.close().await;
                Ok::<_, io::Error>(())
            })?;
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let rounds = number("--rounds", 3).map_err(io::Error::other)?;
    let directory = option("--directory").map_or_else(std::env::temp_dir, PathBuf::from);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rows = Rows::default();
    for _ in 0..rounds {
        measure(&runtime, &directory, &mut rows)?;
    }
    rows.publish()
}
