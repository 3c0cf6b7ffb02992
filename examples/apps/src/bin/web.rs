//! A web application with its worker in the same process: `PUT /orders/<id>` enqueues a task and answers with its result.
//!
//! A client that gets no answer repeats its request. The task has the id of the order, so the order is placed once.

use std::{env, io::Write, path::PathBuf, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::put,
};
use garenne::{Client, Data, TaskContext, TaskError, WaitError, Worker, WorkerConfig, json_payload};
use tempfile::NamedTempFile;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    pieces: u32,
}
json_payload!(Order, "order.place");

struct Orders(PathBuf);

async fn place(cx: TaskContext, orders: Data<Orders>, order: Order) -> garenne::Result<String> {
    if order.pieces == 0 {
        return Err(TaskError::reject("an order has 1 piece or more").into());
    }
    let mut file = NamedTempFile::new_in(&orders.0)?;
    write!(file, "{}", order.pieces)?;
    file.persist(orders.0.join(cx.id().as_str()))?; // another run writes the same file
    Ok(format!("{} pieces ordered", order.pieces))
}

async fn put_order(
    State(client): State<Client>,
    Path(id): Path<u64>,
    Json(order): Json<Order>,
) -> (StatusCode, String) {
    match client.enqueue(order).id(&format!("order-{id}")).wait(Duration::from_secs(20)).await {
        Ok(placed) => (StatusCode::OK, placed),
        Err(WaitError::Rejected { error, .. }) => (StatusCode::UNPROCESSABLE_ENTITY, error),
        // The task is stored: it runs, or will.
        Err(WaitError::TimedOut { .. } | WaitError::ConnectionLost { .. }) => {
            (StatusCode::ACCEPTED, String::new())
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = env::var("AMQP_URL")?;
    let mut config = WorkerConfig::default();
    config.common.amqp_url = url.parse()?;
    let orders = Orders(env::var("ORDERS")?.into());
    let worker = Worker::builder(config).data(orders).handle(place).build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let mut worker = tokio::spawn(worker.run_until(async { drop(stopped.await) }));

    let client = Client::connect(&url).await?;
    let routes = Router::new().route("/orders/{id}", put(put_order)).with_state(client.clone());
    let listener = TcpListener::bind(env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        terminate.recv().await;
    });
    tokio::select! {
        served = server => served?,
        ended = &mut worker => anyhow::bail!("the worker has ended: {:?}", ended?),
    }
    // The last requests have their answers. Now the worker may stop.
    client.close().await;
    drop(stop);
    worker.await??.print();
    Ok(())
}
