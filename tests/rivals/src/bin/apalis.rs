//! apalis with its AMQP backend, as its README has it but for one thing: 1.0.0 takes from a consumer that it has not
//! made yet and panics, and its acks go to a clone of the backend that never gets a channel. Both are made before the
//! worker gets the backend.

use std::future::poll_fn;

use anyhow::Result;
use apalis::prelude::*;
use apalis_amqp::{AmqpBackend, Config};
use garenne_rivals::{Noop, Orders, count, expect};
use lapin::options::QueueDeclareOptions;

async fn noop(task: Noop) -> Result<(), BoxDynError> {
    std::hint::black_box(task);
    count();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let orders = Orders::read()?;
    expect(orders.count);
    let mut config = Config::default().queue(orders.queue.as_str()).prefetch_count(orders.prefetch);
    // The queue is there, with arguments of its own.
    config.declare_options = QueueDeclareOptions { passive: true, ..Default::default() };
    let mut backend = AmqpBackend::<Noop>::new_from_addr(&orders.amqp_url)?.with_config(config);
    // Ready once for its channel, once for its consumer.
    let context = WorkerContext::new("apalis");
    for _ in 0..2 {
        poll_fn(|cx| backend.poll_ready(cx, &context)).await?;
    }
    WorkerBuilder::new("apalis").backend(backend).build(noop).run().await?;
    Ok(())
}
