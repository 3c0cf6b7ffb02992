//! A gateway's spool on a real file system that is full.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use garenne_tests::harness::{
    fault_proxy::FaultProxy, gateway::GatewayPlan, process::Program, suite, test_env::TestEnv,
};
use serde_json::json;

#[tokio::test]
async fn a_disk_without_enough_space_refuses_tasks_and_loses_none_that_was_accepted() -> Result<()> {
    // The spool asks for the free space before it writes.
    refuses_and_recovers("size=4m", "disk of the spool is nearly full", "nearly full").await
}

#[tokio::test]
async fn a_disk_that_takes_no_further_file_refuses_tasks_and_loses_none_that_was_accepted() -> Result<()> {
    // The folders, the lock, the cursor and two segments: the third one fails, although there is space.
    refuses_and_recovers("size=64m,nr_inodes=6", "No space left on device", "No space left on device").await
}

/// Fills a spool on a file system with these options until the gateway refuses a task, and lets it drain.
async fn refuses_and_recovers(options: &str, refusal: &str, reason: &str) -> Result<()> {
    let may_mount = Program::foreign("unshare").arg("--map-root-user").arg("--mount");
    if may_mount.arg("sh").arg("-c").arg("mount -t tmpfs test /mnt").run().await?.code != Some(0) {
        suite::leave_out(
            "a process may not mount a file system of its own (unshare --map-root-user --mount)",
        );
        return Ok(());
    }
    let env = TestEnv::new().await?;
    env.garenne(&["topology", "apply"]).await?;
    let (proxy, url) = FaultProxy::for_url(&env.vhost().amqp_url()).await?;
    proxy.cut();
    let disk = env.folder().join("disk");
    std::fs::create_dir(&disk)?;
    let plan = GatewayPlan::at(&url)?.on_disk(&disk, options);
    let plan = plan.option("--spool", disk.join("spool")).option("--spool-min-free", "0");
    let mut gateway = plan.start().await?;
    let task = json!({"ms": 0, "padding": "x".repeat(100_000)}).to_string();
    let mut accepted = BTreeSet::new();
    let refused = loop {
        ensure!(accepted.len() < 1_000, "the disk is larger than it should be");
        let answer = gateway.post("/v1/tasks/bench.sleep", "application/json", &*task).await?;
        match answer.status {
            202 => accepted.extend(answer.ids()?),
            _ => break answer,
        }
    };
    eprintln!("{} accepted", accepted.len());
    let detail = refused.body["detail"].as_str().unwrap_or_default();
    ensure!(refused.status == 503 && detail.contains(refusal), "{refused:?}");
    ensure!(refused.retry_after.is_some() && accepted.len() > 20, "{} accepted, {refused:?}", accepted.len());
    gateway.until_not_ready_for(reason).await?;

    proxy.heal();
    gateway.until_ready(true).await?;
    let answer = gateway.post("/v1/tasks/bench.sleep", "application/json", &*task).await?;
    accepted.extend(answer.ids()?);
    let worker = env.worker("w")?.stdout().start().await?;
    let done = worker.until_done(accepted.len()).await?;
    let done: BTreeSet<_> = done.into_iter().map(|done| done.task_id).collect();
    ensure!(done == accepted, "{} done, {} accepted", done.len(), accepted.len());
    worker.stop().await?;
    gateway.stop().await?;
    Ok(())
}
