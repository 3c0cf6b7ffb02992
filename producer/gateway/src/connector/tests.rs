//! Tasks wait for the topology.

use garenne_protocol::task::{ContentType, Kind};

use super::*;
use crate::tests::memory_publisher::MemoryPublisher;

fn task() -> NewTask {
    NewTask::new(Kind::parse("reading.process").unwrap(), ContentType::Json, b"{}".to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_topology_and_a_request_for_a_limited_time() {
    let (settled, is_settled) = watch::channel(false);
    let memory = MemoryPublisher::new();
    let gate = |limit| AfterTopology { next: memory.clone(), is_settled: is_settled.clone(), limit };
    let (request, drain) = (gate(Some(PUBLISH_SLOT_TIMEOUT)), gate(None));
    let error = request.publish(vec![task()]).await.unwrap_err();
    assert_eq!(error.to_string(), "publisher is busy: no connection within 1s");
    let mut waiting = drain.publish(vec![task()]);
    assert!(timeout(Duration::from_secs(3600), &mut waiting).await.is_err());
    assert_eq!(memory.tasks().len(), 0);
    settled.send_replace(true);
    waiting.await.unwrap();
    request.publish(vec![task()]).await.unwrap();
    assert_eq!(memory.tasks().len(), 2);
}
