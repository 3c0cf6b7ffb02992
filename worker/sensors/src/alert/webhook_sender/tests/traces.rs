//! Requests continue the traces of their alerts.

use garenne_common::telemetry::Traces;
use garenne_protocol::task::TraceContext;

use super::{
    alert, deliver, sender,
    server::{Reaction::Answer, Server},
    settings,
};
use crate::alert::webhook_sender::OutgoingAlert;

const PARENTS: [&str; 2] = [
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-1bf7651916cd43dd8448eb211c80319c-c8ad6b7169203331-01",
];

fn trace(parent: &str) -> Option<TraceContext> {
    TraceContext::parse(parent, Some("vendor=1"))
}

#[tokio::test]
async fn a_request_continues_the_trace_of_its_alert() {
    let server = Server::start([Answer(503, ""), Answer(200, "")]).await;
    let (sender, (traces, recorder)) = (sender(settings(&server.url)), Traces::recorded());
    let alert = OutgoingAlert { trace: trace(PARENTS[0]), traces, ..alert("a") };
    sender.deliver(sender.destination(None, None).unwrap(), alert).await.unwrap();
    let (spans, requests) = (recorder.spans(), server.requests());
    assert_eq!((spans.len(), requests.len()), (2, 2), "{spans:#?}");
    for ((span, request), status) in spans.iter().zip(&requests).zip(["503", "200"]) {
        let sent = format!("00-{}-{}-01", span.trace_id, span.span_id);
        assert_eq!(
            (request.header("traceparent"), request.header("tracestate")),
            (sent.as_str(), "vendor=1")
        );
        assert_eq!((span.name.as_str(), span.parent_id.as_str()), ("POST", "b7ad6b7169203331"));
        assert_eq!(span.attributes["http.response.status_code"], status);
        assert_eq!(span.error.is_some(), status == "503");
    }
}

#[tokio::test]
async fn a_batch_continues_a_sampled_trace_and_links_the_others() {
    let server = Server::start([]).await;
    let (sender, (traces, recorder)) = (sender(settings(&server.url)), Traces::recorded());
    let unsampled = PARENTS[0].replace("-01", "-00");
    let alerts = [("a", unsampled.as_str()), ("b", PARENTS[1]), ("c", PARENTS[0])];
    let send = |(id, parent)| {
        let alert = OutgoingAlert { trace: trace(parent), traces: traces.clone(), ..alert(id) };
        sender.deliver(sender.destination(None, None).unwrap(), alert)
    };
    futures_util::future::try_join_all(alerts.map(send)).await.unwrap();
    let span = recorder.only("POST");
    assert_eq!(span.parent_id, "c8ad6b7169203331");
    assert_eq!(span.links, ["b7ad6b7169203331", "b7ad6b7169203331"]);
    assert_eq!(span.attributes["garenne.batch"], "3");
}

#[tokio::test]
async fn an_unsampled_trace_is_forwarded_unchanged() {
    let server = Server::start([]).await;
    let sender = sender(settings(&server.url));
    let alert = OutgoingAlert { trace: trace(PARENTS[0]), ..alert("a") };
    sender.deliver(sender.destination(None, None).unwrap(), alert).await.unwrap();
    assert_eq!(server.requests()[0].header("traceparent"), PARENTS[0]);
    deliver(&sender, "b").await.unwrap();
    assert!(!server.requests()[1].head.contains("traceparent"));
}
