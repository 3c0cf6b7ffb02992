//! Senders of lines in InfluxDB's protocol that try to exhaust memory.

use super::{
    hostile::{all, until},
    *,
};

/// A line without an answer is not discarded if there is no memory for it: it waits. The memory of waiting lines is bounded.
#[tokio::test]
async fn influx_lines_without_memory_wait_and_are_stored_in_their_order() {
    let limits =
        Limits { memory_budget: Size::kib(256), retry_after: Duration::from_millis(5), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    let others = gateway.context.budget.reserve(192 << 10).unwrap();
    let more: Vec<_> = std::iter::from_fn(|| gateway.context.budget.reserve(1024).ok()).collect();
    let held = gateway.reserved();
    let name = "x".repeat(3000);
    let sent: String = (0..200).map(|n| format!("m,device=d,t={name} v={n} 1763600{n:06}000000\n")).collect();
    let first = "m,device=d v=1 1763600000000000001\n";
    let mut stream = gateway.raw(first.as_bytes()).await;
    let sending = tokio::spawn(async move {
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        all(&mut stream).await
    });
    let delayed = r#"garenne_gateway_requests_total{protocol="influx-tcp",status="delayed"}"#;
    until("the first line waits", || gateway.metrics.encode().contains(delayed)).await;
    assert!(gateway.publisher.tasks().is_empty());
    assert!(gateway.reserved() <= held + 1024, "a waiting line reserves nothing more");
    drop((others, more));
    assert_eq!(sending.await.unwrap(), "");
    let values: Vec<Value> = gateway.bodies().iter().map(|body| body["value"].clone()).collect();
    let expected: Vec<Value> = std::iter::once(1.0).chain((0..200).map(f64::from)).map(Value::from).collect();
    assert_eq!(values, expected);
    until("all memory is released", || gateway.reserved() == 0).await;
}

#[tokio::test]
async fn an_expensive_influx_line_does_not_refuse_its_neighbours() {
    let limits = Limits { memory_budget: Size::mib(1), ..Limits::default() };
    let gateway = start(MemorySender::new(), limits).await;
    // Its 2,000 readings need more memory than the gateway has.
    let expensive: String = (0..2000).map(|n| format!("f{n}=1,")).collect();
    let sent = format!(
        "m,device=a v=1 1763600000000000001\nm,device=b {expensive}v=1 1763600000000000001\nm,device=c v=1 1763600000000000001\n"
    );
    let mut stream = gateway.raw(sent.as_bytes()).await;
    stream.shutdown().await.unwrap();
    assert_eq!(
        all(&mut stream).await,
        "error too-large line 2: the request's memory (gateway.memory_budget) is larger than 768KiB\n"
    );
    let devices: Vec<Value> = gateway.bodies().iter().map(|body| body["device"].clone()).collect();
    assert_eq!(devices, [json!("a"), json!("c")]);
    assert_eq!(gateway.reserved(), 0);
}
