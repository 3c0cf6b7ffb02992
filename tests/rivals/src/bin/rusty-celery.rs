//! rusty-celery, as its README has it.

use anyhow::Result;
use celery::prelude::*;
use garenne_rivals::{Orders, count, expect};

#[celery::task(name = "bench.noop")]
fn noop(pad: String) -> TaskResult<()> {
    std::hint::black_box(pad);
    count();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let orders = Orders::read()?;
    expect(orders.count);
    let queue: &'static str = orders.queue.leak();
    let app = celery::app!(
        broker = AMQPBroker { orders.amqp_url },
        tasks = [noop],
        task_routes = ["*" => queue],
        prefetch_count = orders.prefetch,
        heartbeat = Some(60),
    )
    .await?;
    app.consume_from(&[queue]).await?;
    Ok(())
}
