//! A sink of its own: stores results in Postgres before their tasks are acked, each task's once.
//!
//! `archive --sink archive` uses it. While the database is away, results wait and the broker keeps the other tasks.

use std::{env, sync::Arc};

use deadpool_postgres::{Manager, Pool};
use futures_util::future::{BoxFuture, FutureExt};
use garenne::{
    Exit, Failure, cli, json_payload,
    sink::{FinishedTask, Sink, SinkAnswer, SinkError},
};
use tokio_postgres::NoTls;

#[derive(serde::Deserialize)]
struct Words {
    text: String,
}
json_payload!(Words, "words.count");

async fn count(words: Words) -> garenne::Result<usize> {
    Ok(words.text.split_whitespace().count())
}

struct Archive(Pool);

impl Archive {
    async fn open() -> anyhow::Result<Self> {
        let database = Manager::new(env::var("DATABASE_URL")?.parse()?, NoTls);
        let pool = Pool::builder(database).build()?;
        let table = "create table if not exists archive (task_id text primary key, kind text, output text)";
        pool.get().await?.batch_execute(table).await?;
        Ok(Self(pool))
    }

    async fn insert(&self, batch: &[FinishedTask]) -> anyhow::Result<()> {
        let ids: Vec<_> = batch.iter().map(|task| task.envelope.id.as_str()).collect();
        let kinds: Vec<_> = batch.iter().map(|task| task.envelope.kind.as_str()).collect();
        let outputs: Vec<_> = batch.iter().map(|task| task.output.json.get()).collect();
        // A result may come again, after a crash for instance. The first one stays.
        let insert = "insert into archive select * from unnest($1::text[], $2::text[], $3::text[]) on conflict do nothing";
        self.0.get().await?.execute(insert, &[&ids, &kinds, &outputs]).await?;
        Ok(())
    }
}

impl Sink for Archive {
    fn name(&self) -> &'static str {
        "archive"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        async move {
            match self.insert(batch).await {
                Ok(()) => Ok(vec![SinkAnswer::Stored; batch.len()]),
                Err(error) => Err(SinkError { sink: self.name(), detail: format!("{error:#}") }), // offered again
            }
        }
        .boxed()
    }
}

async fn open() -> Result<Arc<dyn Sink>, Failure> {
    Ok(Arc::new(Archive::open().await?))
}

fn main() -> Exit {
    cli::run("archive", |worker| Ok(worker.handle(count).named_sink("archive", open)))
}
