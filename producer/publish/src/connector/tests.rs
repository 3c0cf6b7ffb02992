//! Tasks wait for the topology.

use super::*;

const LIMIT: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_topology_and_a_request_for_a_limited_time() {
    let (state, topology) = watch::channel(TopologyState::Ensuring);
    let request = TopologyGate { state: topology, limit: Some(LIMIT) };
    let drain = request.without_limit();
    let error = request.wait().await.unwrap_err();
    assert_eq!(error.to_string(), "publisher is busy: no connection within 1s");
    let mut draining = Box::pin(drain.wait());
    assert!(timeout(Duration::from_secs(3600), &mut draining).await.is_err());

    let address = "rabbit:5672".to_owned();
    state.send_replace(TopologyState::Away(BrokerError::Unavailable {
        address,
        detail: "refused".to_owned(),
    }));
    let error = timeout(Duration::ZERO, request.wait()).await.expect("at once").unwrap_err();
    assert!(error.to_string().starts_with("no broker at rabbit:5672: refused"), "{error}");
    assert!(timeout(Duration::from_secs(3600), &mut draining).await.is_err());

    state.send_replace(TopologyState::Declared);
    draining.await.unwrap();
    request.wait().await.unwrap();
}
