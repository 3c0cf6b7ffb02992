//! The least that a worker can be with this client library: deliver, decode, ack.

use anyhow::{Context, Result};
use futures_util::{FutureExt, StreamExt};
use garenne_rivals::{Noop, Orders, done};
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let orders = Orders::read()?;
    let connection = Connection::connect(&orders.amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(orders.prefetch, BasicQosOptions::default()).await?;
    let (queue, options) = (orders.queue.as_str().into(), BasicConsumeOptions::default());
    let mut deliveries = channel.basic_consume(queue, "raw".into(), options, FieldTable::default()).await?;
    // A tenth of what may be under way, as somebody who knows the broker would have it.
    let batch = if orders.multiple { usize::from(orders.prefetch / 10).max(1) } else { 1 };
    for count in 1..=orders.count {
        let delivery = deliveries.next().await.context("the broker ended it")??;
        std::hint::black_box(serde_json::from_slice::<Noop>(&delivery.data)?);
        if count % batch == 0 || count == orders.count {
            let ack = channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: orders.multiple });
            if count == orders.count {
                ack.await?;
            } else {
                // Polled once, which hands the frame over; its way to the socket is not awaited.
                ack.now_or_never();
            }
        }
    }
    done();
    std::future::pending().await
}
