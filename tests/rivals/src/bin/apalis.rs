//! apalis with its AMQP backend, as its README has it.

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
    let backend = AmqpBackend::<Noop>::new_from_addr(&orders.amqp_url)?.with_config(config);
    WorkerBuilder::new("apalis").backend(backend).build(noop).run().await?;
    Ok(())
}
