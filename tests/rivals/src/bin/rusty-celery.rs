//! rusty-celery, as in its README.

use anyhow::Result;
use celery::prelude::*;
use garenne_rivals::{Options, count, expect};

#[celery::task(name = "bench.noop")]
fn noop(pad: String) -> TaskResult<()> {
    std::hint::black_box(pad);
    count();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::read()?;
    expect(options.count);
    let queue: &'static str = options.queue.leak();
    let app = celery::app!(
        broker = AMQPBroker { options.amqp_url },
        tasks = [noop],
        task_routes = ["*" => queue],
        prefetch_count = options.prefetch,
        heartbeat = Some(60),
    )
    .await?;
    app.consume_from(&[queue]).await?;
    Ok(())
}
