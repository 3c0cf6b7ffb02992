//! A task that kills its worker is found out, and nobody else is condemned with it.

use std::collections::BTreeSet;

use anyhow::Result;
use garenne_tests::harness::{
    scene::Scene,
    wait::{Seen, eventually},
};
use serde_json::json;

/// Starts workers one after the other, as an orchestrator does, until nothing is left, and answers how
/// many died and the ids of what was done.
async fn restart_until_done(scene: &Scene, healthy: usize) -> Result<(usize, BTreeSet<String>)> {
    let mut done = BTreeSet::new();
    let mut deaths = 0;
    for restart in 0..10 {
        let plan = scene.worker(&format!("mortal-{restart}"))?.stdout();
        let plan = plan.lane("fast:prefetch=50,concurrency=2..2").option("--shutdown-mode", "soft");
        let worker = plan.begin().await?;
        let died = eventually("it dies, or everything is settled", async || {
            if worker.has_ended() {
                return Ok(Seen::Wanted(true));
            }
            let dead = scene.client().ready("garenne.dead").await?;
            let now = worker.done()?;
            let all = now.iter().map(|it| &it.task_id).chain(&done).collect::<BTreeSet<_>>().len();
            Ok(if dead == 1 && all == healthy {
                Seen::Wanted(false)
            } else {
                Seen::Other(format!("{dead} dead, {all} done"))
            })
        })
        .await?;
        if !died {
            done.extend(worker.stop().await?.done.into_iter().map(|done| done.task_id));
            break;
        }
        deaths += 1;
        done.extend(worker.died().await?.into_iter().map(|done| done.task_id));
    }
    Ok((deaths, done))
}

#[tokio::test]
async fn poison_is_condemned_alone() -> Result<()> {
    let scene = Scene::new().await?;
    // Makes the topology.
    scene.worker("first")?.start().await?.stop().await?;
    let mut ids = scene.publish("bench.sleep", &json!({"ms": 1}), "early", 500).await?;
    scene.publish("bench.abort", &json!({}), "poison", 1).await?;
    ids.extend(scene.publish("bench.sleep", &json!({"ms": 1}), "late", 500).await?);
    let (deaths, done) = restart_until_done(&scene, ids.len()).await?;
    assert!((2..=4).contains(&deaths), "{deaths} workers died");
    assert_eq!(done, ids.into_iter().collect());
    let dead = scene.take_all("garenne.dead", 1).await?.remove(0);
    assert_eq!((dead.id(), dead.text("garenne-reason").as_str()), ("poison-0", "poison"));
    scene.until_lane("fast", 0, 0).await?;
    scene.is_empty("garenne.suspect").await
}
