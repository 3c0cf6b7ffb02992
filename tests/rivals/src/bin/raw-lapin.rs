//! The smallest possible worker with lapin: receive, decode, ack.

use anyhow::{Context, Result};
use futures_util::{FutureExt, StreamExt};
use garenne_rivals::{Noop, Options, done};
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::read()?;
    let connection = Connection::connect(&options.amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(options.prefetch, BasicQosOptions::default()).await?;
    let (queue, defaults) = (options.queue.as_str().into(), BasicConsumeOptions::default());
    let mut deliveries = channel.basic_consume(queue, "raw".into(), defaults, FieldTable::default()).await?;
    // A tenth of the prefetch, as an experienced user would configure it.
    let batch = if options.multiple { usize::from(options.prefetch / 10).max(1) } else { 1 };
    for count in 1..=options.count {
        let delivery = deliveries.next().await.context("the broker cancelled the consumer")??;
        std::hint::black_box(serde_json::from_slice::<Noop>(&delivery.data)?);
        if count % batch == 0 || count == options.count {
            let ack =
                channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: options.multiple });
            if count == options.count {
                ack.await?;
            } else {
                // One poll passes the frame to the connection; the write to the socket is not awaited.
                ack.now_or_never();
            }
        }
    }
    done();
    std::future::pending().await
}
