//! Workers inside a program that has a web server of its own.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use axum::{Router, extract::State, routing::get};
use futures_util::future::try_join_all;
use garenne::{
    Client, Data, Worker, WorkerConfig, WorkerHandle,
    config::{Lane, Lanes},
    json_payload,
    shutdown::Mode,
};
use garenne_tests::harness::test_env::TestEnv;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task::JoinSet, time::timeout, try_join};

use super::waits::WAIT;

#[derive(Serialize, Deserialize)]
struct Resize {}
json_payload!(Resize, "image.resize");

#[derive(Serialize, Deserialize)]
struct Send {}
json_payload!(Send, "email.send");

/// Which worker runs a task.
struct Name(&'static str);

async fn resize(name: Data<Name>, _: Resize) -> garenne::Result<&'static str> {
    Ok(name.0)
}

async fn send(name: Data<Name>, _: Send) -> garenne::Result<&'static str> {
    Ok(name.0)
}

/// The program's own address for both workers.
async fn metrics(State(workers): State<[WorkerHandle; 2]>) -> String {
    WorkerHandle::metrics_of(&workers)
}

#[tokio::test]
async fn two_workers_beside_a_web_server_share_nothing_and_end_one_after_the_other() -> Result<()> {
    let env = TestEnv::new().await?;
    let config = |only: &str| -> Result<WorkerConfig> {
        let lanes = Lanes::new()
            .lane("images", Lane::bound_to(["image.#"]))
            .lane("mail", Lane::bound_to(["email.#"]))
            .only([only]);
        let mut config = WorkerConfig { lanes, ..WorkerConfig::default() };
        config.common.amqp_url = env.vhost().amqp_url().parse()?;
        config.worker_id = Some(only.to_owned());
        Ok(config)
    };
    let images = Worker::builder(config("images")?).data(Name("images")).handle(resize).build()?;
    let mail = Worker::builder(config("mail")?).data(Name("mail")).handle(send).build()?;
    let (images_handle, mail_handle) = (images.handle(), mail.handle());
    let mut running = JoinSet::new();
    let images = running.spawn(images.run_until(std::future::pending())).id();
    running.spawn(mail.run_until(std::future::pending()));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .with_state([images_handle.clone(), mail_handle.clone()]);
    let server = tokio::spawn(axum::serve(listener, routes).into_future());
    timeout(WAIT, async { try_join!(images_handle.until_ready(), mail_handle.until_ready()) }).await??;

    let client = Client::connect(&env.vhost().amqp_url()).await?;
    let resized = try_join_all((0..20).map(|_| client.enqueue(Resize {}).wait::<String>(WAIT))).await?;
    let sent = try_join_all((0..20).map(|_| client.enqueue(Send {}).wait::<String>(WAIT))).await?;
    ensure!(resized.iter().all(|by| by == "images") && sent.iter().all(|by| by == "mail"));
    let text = reqwest::get(format!("http://{address}/metrics")).await?.text().await?;
    for (lane, of) in [("images", &images_handle), ("mail", &mail_handle)] {
        let acked = format!("garenne_settlements_total{{lane=\"{lane}\",settlement=\"acked\"");
        let (with_worker, alone) = (format!("{acked},worker=\"{lane}\"}} 20\n"), format!("{acked}}} 20\n"));
        ensure!(text.contains(&with_worker) && of.metrics().contains(&alone), "{text}");
    }
    let names: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').map(|it| it.0))
        .collect();
    ensure!(names.iter().collect::<BTreeSet<_>>().len() == names.len(), "a series is there twice: {text}");
    ensure!(text.matches("# TYPE garenne_settlements_total").count() == 1, "{text}");

    images_handle.drain(Mode::Light).await;
    let Some(ended) = running.join_next_with_id().await else { unreachable!("two workers run") };
    let (id, receipt) = ended?;
    let receipt = receipt?;
    ensure!(id == images && receipt.acked == 20 && receipt.balances(), "{receipt:?}");
    let ended = Err(vec!["the worker has ended".to_owned()]);
    ensure!(images_handle.ready() == ended && mail_handle.ready().is_ok(), "{:?}", images_handle.ready());
    // The other worker and the server go on, and what waits for the first one waits for the next.
    client.enqueue(Resize {}).await?;
    ensure!(client.enqueue(Send {}).wait::<String>(WAIT).await? == "mail");
    env.until_lane("images", 1, 0).await?;
    ensure!(reqwest::get(format!("http://{address}/metrics")).await?.status().is_success());
    mail_handle.drain(Mode::SoftTimeout).await;
    let receipt = running.join_next().await.transpose()?.transpose()?;
    ensure!(receipt.as_ref().is_some_and(|receipt| receipt.acked == 21), "{receipt:?}");
    server.abort();
    client.close().await;
    Ok(())
}
