//! Web pages of other origins.

use super::*;

const LISTED: &str = "https://app.example.org";

async fn listing(origins: &[&str]) -> Running {
    let allowed_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
    let settings = GatewaySettings { allowed_origins, ..GatewaySettings::default() };
    start_with(settings, MemorySender::new(), (Access::default(), None), Traces::default()).await
}

async fn post(gateway: &Running, path: &str, origin: &str) -> reqwest::Response {
    let request = reqwest::Client::new().post(format!("http://{}{path}", gateway.address));
    // A content type that a page may send to another origin without asking first.
    request.header("origin", origin).header("content-type", "text/plain").body(READING).send().await.unwrap()
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused_on_every_route_and_publishes_nothing() {
    let gateway = listing(&[]).await;
    for path in
        ["/v1/readings", "/v1/tasks/bench.noop", "/v1/events", "/api/v2/write", "/write", "/query", "/health"]
    {
        for origin in ["https://evil.example", "null", "http://localhost:3000"] {
            let refused = post(&gateway, path, origin).await;
            assert_eq!(refused.status(), 403, "{path} {origin}");
            assert!(!refused.headers().contains_key("access-control-allow-origin"));
            let problem: Value = refused.json().await.unwrap();
            assert_eq!(problem["code"], "foreign-origin");
        }
    }
    assert!(gateway.publisher.tasks().is_empty());
    let counted = r#"garenne_gateway_refusals_total{protocol="http",reason="foreign-origin"} 9"#;
    assert!(gateway.metrics.encode().contains(counted));
}

#[tokio::test]
async fn a_listed_page_may_send_and_read_the_answer() {
    let gateway = listing(&[LISTED]).await;
    let url = format!("http://{}/v1/readings", gateway.address);
    let asking = reqwest::Client::new().request(reqwest::Method::OPTIONS, &url).header("origin", LISTED);
    let asking = asking.header("access-control-request-method", "POST");
    let allowed =
        asking.header("access-control-request-headers", "authorization,content-type").send().await.unwrap();
    assert_eq!(allowed.headers()["access-control-allow-origin"], LISTED);
    assert!(allowed.headers()["access-control-allow-headers"].to_str().unwrap().contains("authorization"));
    let json = reqwest::Client::new().post(&url).header("origin", LISTED).body(READING).send().await.unwrap();
    assert_eq!(
        (json.status().as_u16(), &json.headers()["access-control-allow-origin"]),
        (202, &LISTED.parse().unwrap())
    );
    assert_eq!(post(&gateway, "/v1/readings", "https://evil.example").await.status(), 403);
}

#[tokio::test]
async fn the_gateways_own_address_is_its_own_origin() {
    let gateway = listing(&[]).await;
    let own = format!("http://{}", gateway.address);
    let request = reqwest::Client::new().post(format!("{own}/v1/readings")).header("origin", own);
    assert_eq!(request.body(READING).send().await.unwrap().status(), 202);
}
