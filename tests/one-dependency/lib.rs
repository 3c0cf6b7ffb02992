//! A crate whose only dependency is `garenne`. It names and uses each item of the library's public API.
//!
//! A test (`tests/src/public_api.rs`) checks that it uses all of them. It is compiled, and not run.
#![expect(missing_docs, reason = "its items are of no use to anybody")]

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use garenne::{
    CancellationToken, Client, ClientBuilder, Data, Enqueue, EnqueueError, Exit, Failure, HeaderValue,
    Output, Payload, RegistryError, ReplyQueues, RetryPolicy, SinkName, TaskContext, TaskError, TaskId,
    TaskOptions, TaskPublisher, WaitError, Worker, WorkerArgs, WorkerBuilder, WorkerConfig, WorkerError,
    WorkerHandle,
    broker::{BrokerError, PublishError, TopologyError},
    cli,
    config::{
        AllowedHosts, CeleryZone, Certificates, Common, Concurrency, ConfigError, Events, IgnoredSettings,
        Invalid, Lane, Lanes, LogFormat, Otlp, OtlpProtocol, OtlpSampler, ParseError, Retry, SecretUrl,
        Settings, Size, Sources, Table, load, load_with,
    },
    exit::HasExit,
    handler::{
        Arguments, AsyncFunction, BatchRecords, ErrorClass, FollowUp, FollowUps, FromTask, Handler,
        HandlerError, HandlerResult, Helpers, IntoOutput, KeyLimit, MissingData, RefusedPart, WhenDead,
        WorkerData,
    },
    json_payload,
    layer::{Layer, Next, Task},
    payload::PayloadError,
    serde::{Deserialize, Serialize},
    shutdown::{Command, Mode, Receipt, ReceiptError, UnknownMode},
    sink::{FinishedTask, LaneFigures, Sink, SinkAnswer, SinkContext, SinkError, stdout::StdoutSink},
    task::{
        AppHeaders, Arrival, BadVersion, Cause, ContentType, DeadReason, Envelope, FOREIGN_KIND, HeaderError,
        IdError, Kind, KindError, Malformed, NewTask, QuarantineRecord, Source, TraceContext,
        UnhandledRecord, Version, WorkerIncarnation,
    },
    testing::{TestOutcome, TestTask, TestWorker, finished},
    traces::{Begun, Span, SpanKind, Traces},
    worker::{Companion, EndedEarly, PoolError},
};

#[derive(Clone, Serialize, Deserialize)]
#[serde(crate = "garenne::serde")]
pub struct Mail {
    to: String,
}
json_payload!(Mail, "email.send");

/// Settings in code, from what a program has.
fn settings(url: &str, size: &str, lane: &str) -> Result<WorkerConfig, garenne::Error> {
    let amqp_url: SecretUrl = url.parse()?;
    let otlp = Otlp { protocol: OtlpProtocol::default(), sampler: OtlpSampler::default(), ..Otlp::default() };
    let common = Common {
        amqp_url,
        amqp_tls: Certificates { ca: Some("ca.pem".into()), ..Certificates::default() },
        prefix: "shop".into(),
        log_format: LogFormat::Json,
        allowed_hosts: AllowedHosts::default(),
        events: Events { heartbeat: Duration::from_secs(5) },
        otlp,
        ..Common::default()
    };
    let concurrency: Concurrency = "1..4".parse()?;
    let lanes = Lanes::new()
        .lane("mail", Lane::bound_to(["email.#"]).concurrency(1..=8).prefetch(50))
        .lane(lane, Lane { concurrency, ..Lane::direct().shards(2).max_per_key(1) })
        .lane("default", Lane::default().catch_all())
        .only(["mail"]);
    let max_payload: Size = size.parse()?;
    Ok(WorkerConfig {
        common,
        lanes,
        retry: Retry::after([Duration::from_secs(1), Duration::from_secs(60)]),
        sinks: vec![SinkName(SinkName::STDOUT.into()), SinkName(SinkName::RESULTS.into())],
        shutdown_mode: "light".parse()?,
        max_payload,
        reply_queues: ReplyQueues::default(),
        ..WorkerConfig::default()
    })
}

pub fn of_file(file: &str) -> Result<WorkerConfig, ConfigError> {
    let _: WorkerConfig = load_with(Sources::default(), [])?;
    load(Sources { file: Some(file.into()), flags: Table::new() })
}

fn refused_setting(config: &WorkerConfig) -> Option<Invalid> {
    config.validate().err()
}

fn ignored(mut config: WorkerConfig) -> Vec<IgnoredSettings> {
    std::mem::take(&mut config.common_mut().ignored)
}

/// The errors of settings.
fn setting_of(error: &ConfigError) -> &str {
    match error {
        ConfigError::Invalid { setting, .. } | ConfigError::Unknown { setting, .. } => setting,
        _ => "",
    }
}

fn texts(error: ParseError, mode: UnknownMode, version: BadVersion, message: Malformed) -> [String; 4] {
    [error.to_string(), mode.to_string(), version.to_string(), message.to_string()]
}

struct Mailer(HashMap<String, String>);

/// An argument of handlers.
struct Tenant(String);

impl FromTask for Tenant {
    fn from_task(context: &TaskContext) -> Result<Self, TaskError> {
        match context.header("tenant") {
            Some(HeaderValue::Text(text)) => Ok(Self(text.to_owned())),
            Some(other) => Ok(Self(other.as_i64().unwrap_or_default().to_string())),
            None => Err(TaskError::reject("the header tenant is missing")),
        }
    }

    fn check_data(data: &WorkerData) -> Result<(), MissingData> {
        let _mailer: Option<Data<Mailer>> = data.get();
        Ok(())
    }
}

async fn send(
    context: TaskContext,
    tenant: Tenant,
    mailer: Data<Mailer>,
    mail: Mail,
) -> garenne::Result<String> {
    let _: (&TaskId, &Kind, u32) = (context.id(), context.kind(), context.attempt());
    let _: Option<TraceContext> = context.trace();
    let _: &Traces = context.traces();
    if let Some(Source::Topic(topic)) = context.source() {
        return Ok(topic.to_owned());
    }
    if let Some((records, _)) = context.batch_records() {
        let _: (&BatchRecords, &usize) = (records, records.derived(<[_]>::len));
    }
    let _: TaskId = context.follow_up("email.sent", &mail)?;
    let later = FollowUp::new("email.remind", &mail)
        .delay(Duration::from_secs(60))
        .key("acme")
        .header("tenant", &tenant.0);
    let _: TaskId = context.follow_up_with(later)?;
    context.checkpoint(&context.last_checkpoint::<u32>().unwrap_or(0))?;
    let _: (usize, u32) = (FollowUps::MAX_COUNT, FollowUps::MAX_DEPTH);
    mailer.0.get(&tenant.0).cloned().ok_or_else(|| TaskError::invalid("no such tenant").into())
}

fn record(traces: &Traces, parent: Option<&TraceContext>) -> Option<Span> {
    let Begun { span, .. } = traces.begin(parent, SpanKind::Client, |_| {});
    span
}

struct Wide(Output);

impl IntoOutput for Wide {
    fn into_output(self) -> Result<Output, TaskError> {
        Ok(self.0)
    }
}

fn part() -> Output {
    let refused = RefusedPart {
        reason: DeadReason::Rejected,
        error: "no".into(),
        codes: Vec::new(),
        payload: Vec::new(),
        content_type: Some(ContentType::Json),
    };
    Output::json(&1).unwrap().with_refused(Some(refused)).with_extension(Tenant("acme".into()))
}

struct Text(String);

impl Payload for Text {
    const KIND: &'static str = FOREIGN_KIND;

    fn read(_: ContentType, body: &[u8]) -> Result<Self, PayloadError> {
        let text = std::str::from_utf8(body).map_err(|error| PayloadError::Malformed(error.to_string()))?;
        Ok(Self(text.to_owned()))
    }
}

async fn count(text: Text) -> Result<usize, TaskError> {
    Ok(text.0.len())
}

struct Log;

impl Layer for Log {
    async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
        next.run(task).await
    }
}

struct Store;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Sink for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn write<'a>(&'a self, batch: &'a [FinishedTask]) -> BoxFuture<'a, Result<Vec<SinkAnswer>, SinkError>> {
        Box::pin(async move {
            let unavailable = |detail: String| SinkError { sink: "store", detail };
            let first = batch.first().ok_or_else(|| unavailable("no result".into()))?;
            let envelope: &Envelope = &first.envelope;
            let _: (Option<&Arrival>, Version) = (envelope.arrival.as_deref(), envelope.version);
            let _: Option<&UnhandledRecord> = envelope.unhandled.as_deref();
            let quarantine: Option<&QuarantineRecord> = envelope.quarantine.as_deref();
            let _: Option<&WorkerIncarnation> = quarantine.and_then(|it| it.worker.as_ref());
            Ok(vec![SinkAnswer::Stored; batch.len()])
        })
    }

    fn background<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let figures: Vec<LaneFigures> = context.lanes();
            let publisher: &TaskPublisher = context.publisher();
            let kind = Kind::parse("email.stored").unwrap();
            let task = NewTask::new(kind, ContentType::Json, b"{}".to_vec());
            let headers: &AppHeaders = &task.headers;
            let _ = (figures.len(), headers.iter().count());
            match publisher.publish(task).await {
                Err(PublishError::Connect(error)) => context.failed("publish", &error.to_string()),
                _ => context.succeeded("publish"),
            }
        })
    }
}

fn is_handler<H: Handler<Arguments>, Arguments>(_: &H) -> &'static str {
    H::Payload::KIND
}

fn options() -> TaskOptions {
    let retry = RetryPolicy::default().attempts(3).classify(|_| ErrorClass::Retry);
    let options = TaskOptions::long()
        .cpu_bound()
        .retry(retry)
        .helpers(1 << 20, 2)
        .limit_per_key(5, |mail: &Mail| mail.to.clone());
    let _: (Option<Helpers>, &Option<KeyLimit>, &Option<WhenDead>) =
        (options.helpers, &options.key, &options.when_dead);
    options
}

fn builder(config: WorkerConfig) -> WorkerBuilder<(Arc<()>, Log)> {
    let _ = is_handler(&send);
    Worker::builder(config)
        .layer(Log)
        .data(Mailer(HashMap::new()))
        .sink(StdoutSink::new())
        .sink(Arc::new(Store))
        .handle_with(send, options())
        .handle(count)
}

pub async fn run(config: WorkerConfig, stop: impl Future<Output = ()>) -> Result<Receipt, WorkerError> {
    let worker = builder(config).build()?;
    let handle: WorkerHandle = worker.handle();
    if handle.ready().is_err() {
        println!("{}{}", handle.metrics(), WorkerHandle::metrics_of([&handle]));
    }
    let registry: &garenne::prometheus::Registry = handle.registry();
    println!("{} metrics", registry.gather().len());
    let started: Result<(), EndedEarly> = handle.until_ready().await;
    if let Err(early) = started {
        println!("{early}");
    }
    handle.drain(Mode::Light).await;
    worker.run_until(stop).await
}

pub fn why(error: &WorkerError) -> Exit {
    match error {
        WorkerError::Registry(RegistryError::Data { missing, .. }) => println!("{}", missing.type_name),
        WorkerError::Pool { problem, .. } => told(problem),
        WorkerError::Broker(BrokerError::Unavailable { address, .. }) => println!("{address}"),
        WorkerError::Topology(TopologyError::Denied { name, .. }) => println!("{name}"),
        _ => {}
    }
    error.exit()
}

fn told(problem: &PoolError) {
    println!("{}", problem.field);
}

pub fn stop_with(cause: Cause) -> Command {
    Command::Shutdown(if cause == Cause::Shutdown { Mode::Soft } else { Mode::Hard })
}

pub fn save(receipt: &Receipt) -> Result<(), ReceiptError> {
    receipt.write_to("receipt.json".as_ref())
}

pub fn program(arguments: WorkerArgs) -> Exit {
    let _: Result<WorkerConfig, ConfigError> = arguments.config(Default::default());
    cli::block_on("program", async { Err(Failure::new(Exit::Failed, "not started")) });
    let program = cli::Program::new("program").version("1.0.0").log_filter("info");
    cli::run(program, |worker| Ok(worker.layer(Log).data(Mailer(HashMap::new())).handle(send)))
}

/// Code that is generic over handlers, and what runs beside them.
pub fn with<F, A>(builder: WorkerBuilder, zone: CeleryZone, handler: F) -> WorkerBuilder
where
    F: Handler<A> + AsyncFunction<A>,
    A: Arguments + 'static,
    F::Future: Future,
    <F::Future as Future>::Output: HandlerResult,
    TaskError: HandlerError,
{
    let lane = Lane { celery: true, celery_timezone: zone, ..Lane::bound_to(["email.#"]) };
    assert!(lane.celery);
    builder.handle(handler).companion(|companion: Companion| async move {
        companion.stopping.cancelled().await;
    })
}

/// What a layer may count.
pub fn word(token: &CancellationToken, error: &TaskError) -> &'static str {
    if token.is_cancelled() || error.downcast_ref::<std::io::Error>().is_some() {
        "away"
    } else {
        error.decision()
    }
}

/// Why a task was not published.
pub fn problem(error: &EnqueueError) -> String {
    let told = |id: Option<&IdError>, kind: Option<&KindError>, header: Option<&HeaderError>| {
        format!("{id:?} {kind:?} {header:?}")
    };
    match error {
        EnqueueError::Id(error) => told(Some(error), None, None),
        EnqueueError::Kind(error) => told(None, Some(error), None),
        EnqueueError::Header(error) => told(None, None, Some(error)),
        EnqueueError::Closed => "closed".to_owned(),
        error => error.to_string(),
    }
}

pub async fn publish(url: &str, mail: Mail) -> Result<String, WaitError> {
    let builder: ClientBuilder =
        Client::builder(url).prefix("shop").certificates(garenne::broker::Certificates::default());
    let client = match url.starts_with("amqps:") {
        true => builder.connect().await?,
        false => Client::connect(url).await?,
    };
    let task: Enqueue<'_> =
        client.enqueue(mail).id("m-1").header("tenant", "acme").delay(Duration::from_secs(1));
    task.wait(Duration::from_secs(10)).await
}

pub async fn test(url: &str) {
    let config = settings(url, "4MiB", "jobs").unwrap();
    assert!(refused_setting(&config).is_none() && ignored(config.clone()).is_empty());
    let worker = TestWorker::new(builder(config)).unwrap();
    let task: TestTask<'_> = worker.task("email.send", r#"{"to":"a"}"#).attempt(2);
    let TestOutcome::Done(_) = task.run().await else { panic!() };
    let _: FinishedTask = finished("id", "1");
    let _ = (setting_of, texts, record, part, Wide);
}
