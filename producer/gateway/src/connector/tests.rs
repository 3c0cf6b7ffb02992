//! Tasks wait for the topology.

use garenne_protocol::task::{ContentType, Kind};

use super::*;
use crate::tests::memory_publisher::MemoryPublisher;

const LIMIT: Duration = Duration::from_secs(1);

fn task() -> NewTask {
    NewTask::new(Kind::parse("reading.process").unwrap(), ContentType::Json, b"{}".to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_topology_and_a_request_for_a_limited_time() {
    let (state, topology) = watch::channel(TopologyState::Ensuring);
    let memory = MemoryPublisher::new();
    let gate = |limit| AfterTopology { next: memory.clone(), topology: topology.clone(), limit };
    let (request, drain) = (gate(Some(LIMIT)), gate(None));
    let error = request.publish(vec![task()]).await.unwrap_err();
    assert_eq!(error.to_string(), "publisher is busy: no connection within 1s");
    let mut draining = drain.publish(vec![task()]);
    assert!(timeout(Duration::from_secs(3600), &mut draining).await.is_err());

    let address = "rabbit:5672".to_owned();
    state.send_replace(TopologyState::Away(BrokerError::Unavailable {
        address,
        detail: "refused".to_owned(),
    }));
    let error = timeout(Duration::ZERO, request.publish(vec![task()])).await.expect("at once").unwrap_err();
    assert!(error.to_string().starts_with("no broker at rabbit:5672: refused"), "{error}");
    assert!(timeout(Duration::from_secs(3600), &mut draining).await.is_err());
    assert_eq!(memory.tasks().len(), 0);

    state.send_replace(TopologyState::Settled);
    draining.await.unwrap();
    request.publish(vec![task()]).await.unwrap();
    assert_eq!(memory.tasks().len(), 2);
}
