//! apalis with its AMQP backend, as in its README, with one difference. Version 1.0.0 panics because it polls a
//! consumer before it exists, and it acks on a clone of the backend that has no channel. Therefore, channel and
//! consumer are created before the worker gets the backend.

use std::future::poll_fn;

use anyhow::Result;
use apalis::prelude::*;
use apalis_amqp::{AmqpBackend, Config};
use garenne_rivals::{Noop, Options, count, expect};
use lapin::options::QueueDeclareOptions;

async fn noop(task: Noop) -> Result<(), BoxDynError> {
    std::hint::black_box(task);
    count();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::read()?;
    expect(options.count);
    let mut config = Config::default().queue(options.queue.as_str()).prefetch_count(options.prefetch);
    // The queue exists, with other arguments.
    config.declare_options = QueueDeclareOptions { passive: true, ..Default::default() };
    let mut backend = AmqpBackend::<Noop>::new_from_addr(&options.amqp_url)?.with_config(config);
    // The first call opens the channel, the second one starts the consumer.
    let context = WorkerContext::new("apalis");
    for _ in 0..2 {
        poll_fn(|cx| backend.poll_ready(cx, &context)).await?;
    }
    WorkerBuilder::new("apalis").backend(backend).build(noop).run().await?;
    Ok(())
}
