//! The smallest service for a handler over HTTP, and the smallest client of it.
//!
//! `bare_http --serve` prints its address and answers each request with `{}`. `bare_http --post URL --in-flight N --count N`
//! posts JSON of 200 B, and prints `done` when it has all answers.

use anyhow::{Context, Result, ensure};
use axum::{Router, routing::post};
use bytes::Bytes;
use futures_util::future::try_join_all;
use garenne_bench::{flag, number, option};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Uri, header::CONTENT_TYPE};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    if flag("--serve") {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let run = async |_: Bytes| ([(CONTENT_TYPE, "application/json")], "{}");
        return Ok(axum::serve(listener, Router::new().route("/", post(run))).await?);
    }
    let url: Uri = option("--post").context("--post is missing")?.parse()?;
    let given = |name| number(name, 1).map_err(anyhow::Error::msg);
    let (in_flight, count) = (given("--in-flight")?, given("--count")?);
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(tcp);
    let body = Bytes::from(format!("{{\"pad\":\"{}\"}}", "x".repeat(190)));
    let posting = (0..in_flight).map(|part| {
        let (client, url, body) = (client.clone(), url.clone(), body.clone());
        let own = count / in_flight + usize::from(part < count % in_flight);
        // On the threads of the runtime, as handlers run.
        tokio::spawn(async move {
            for _ in 0..own {
                let request = Request::post(url.clone()).header(CONTENT_TYPE, "application/json");
                let response = client.request(request.body(Full::new(body.clone()))?).await?;
                ensure!(response.status().is_success(), "{response:?}");
                response.into_body().collect().await?;
            }
            Ok(())
        })
    });
    try_join_all(posting).await?.into_iter().collect::<Result<()>>()?;
    println!("done");
    std::future::pending().await
}
