//! Layers: code around every handler of a worker.
//!
//! A layer sees each task before its handler does, and each result before the task is settled: to log a tenant, to measure,
//! to refuse tasks, to decrypt a body. [`WorkerBuilder::layer`](crate::WorkerBuilder::layer) adds it to the handlers that are
//! added after it. The first layer is the outermost.
//!
//! ```
//! use garenne::{Output, TaskContext, TaskError, Worker, WorkerConfig, json_payload, layer::{Layer, Next, Task}};
//!
//! /// Refuses tasks without a tenant, and logs how those of the others end.
//! struct Tenant;
//!
//! impl Layer for Tenant {
//!     async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
//!         let Some(tenant) = task.context.header_text("tenant").map(str::to_owned) else {
//!             return Err(TaskError::reject("the header tenant is missing"));
//!         };
//!         let result = next.run(task).await;
//!         println!("{tenant}: {}", if result.is_ok() { "done" } else { "failed" });
//!         result
//!     }
//! }
//!
//! #[derive(serde::Deserialize)]
//! struct Greet {}
//! json_payload!(Greet, "demo.greet");
//!
//! async fn greet(_: Greet) -> Result<&'static str, TaskError> {
//!     Ok("hello")
//! }
//!
//! let worker = Worker::builder(WorkerConfig::default()).layer(Tenant).handle(greet).build();
//! assert!(worker.is_ok());
//! ```
//!
//! Layers and handler are compiled into one future, so a layer that does nothing costs nothing. Timeouts, panics and tasks
//! that do not start never reach a layer: metrics and spans of the worker count them.

use std::{marker::PhantomData, sync::Arc};

use futures_util::future::BoxFuture;

pub use crate::handler::Task;
use crate::handler::{Handler, Output, TaskError};

/// Code around every handler. See the [module's documentation](self).
pub trait Layer: Send + Sync + 'static {
    /// Runs the task, as a rule with `next.run(task).await`.
    ///
    /// A layer that does not call `next` settles the task by its own result.
    fn call(&self, task: Task, next: &impl Next) -> impl Future<Output = Result<Output, TaskError>> + Send;
}

/// What comes after a layer: another layer or the handler.
pub trait Next: Send + Sync {
    /// Runs the task.
    fn run(&self, task: Task) -> impl Future<Output = Result<Output, TaskError>> + Send;
}

/// No layer.
impl Layer for () {
    fn call(&self, task: Task, next: &impl Next) -> impl Future<Output = Result<Output, TaskError>> + Send {
        next.run(task)
    }
}

/// Two layers, the outer one first.
impl<Outer: Layer, Inner: Layer> Layer for (Arc<Outer>, Inner) {
    async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
        self.0.call(task, &Rest { layer: &self.1, next }).await
    }
}

/// A layer and what comes after it.
struct Rest<'a, L, N> {
    layer: &'a L,
    next: &'a N,
}

impl<L: Layer, N: Next> Next for Rest<'_, L, N> {
    fn run(&self, task: Task) -> impl Future<Output = Result<Output, TaskError>> + Send {
        self.layer.call(task, self.next)
    }
}

/// A handler with the layers around it, without their types. As stored in the registry.
pub(crate) trait ErasedHandler: Send + Sync {
    fn call(&self, task: Task) -> BoxFuture<'_, Result<Output, TaskError>>;
}

struct Layered<L, N> {
    layers: Arc<L>,
    last: N,
}

/// A handler as the end of its layers.
pub(crate) struct Function<H, Arguments>(H, PhantomData<fn(Arguments)>);

impl<H, Arguments> Function<H, Arguments> {
    pub(crate) fn new(handler: H) -> Self {
        Self(handler, PhantomData)
    }
}

impl<H: Handler<Arguments>, Arguments> Next for Function<H, Arguments> {
    fn run(&self, task: Task) -> impl Future<Output = Result<Output, TaskError>> + Send {
        self.0.call(task)
    }
}

impl<L: Layer, N: Next> ErasedHandler for Layered<L, N> {
    fn call(&self, task: Task) -> BoxFuture<'_, Result<Output, TaskError>> {
        Box::pin(self.layers.call(task, &self.last))
    }
}

/// Erases the types of layers and of what runs the task after them.
pub(crate) fn erase<L: Layer, N: Next + 'static>(layers: Arc<L>, last: N) -> Arc<dyn ErasedHandler> {
    Arc::new(Layered { layers, last })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        Data, TaskContext, Worker, WorkerConfig,
        handler::FromTask,
        json_payload,
        testing::{TestOutcome, TestWorker},
    };

    #[derive(serde::Deserialize)]
    struct Greet {
        name: String,
    }
    json_payload!(Greet, "demo.greet");

    type Log = Arc<Mutex<Vec<String>>>;

    /// Writes down when it begins and how the task ended.
    struct Named(&'static str, Log);

    impl Layer for Named {
        async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
            self.1.lock().unwrap().push(format!("{} begins", self.0));
            let result = next.run(task).await;
            let ended = result.as_ref().map_or_else(TaskError::message, |output| output.json.get());
            self.1.lock().unwrap().push(format!("{} ends: {ended}", self.0));
            result
        }
    }

    /// Refuses the tasks of one name.
    struct Refuse(&'static str);

    impl Layer for Refuse {
        async fn call(&self, task: Task, next: &impl Next) -> Result<Output, TaskError> {
            if task.body.windows(self.0.len()).any(|window| window == self.0.as_bytes()) {
                return Err(TaskError::reject(format!("{} is refused", self.0)));
            }
            next.run(task).await
        }
    }

    struct Attempt(u32);

    impl FromTask for Attempt {
        fn from_task(context: &TaskContext) -> Result<Self, TaskError> {
            Ok(Self(context.attempt()))
        }
    }

    struct Salutation(&'static str);

    async fn greet(
        salutation: Data<Salutation>,
        Attempt(attempt): Attempt,
        context: TaskContext,
        greet: Greet,
    ) -> anyhow::Result<String> {
        assert_eq!(context.attempt(), attempt);
        Ok(format!("{} {}", salutation.0, greet.name))
    }

    #[tokio::test]
    async fn layers_are_around_each_handler_and_the_first_is_the_outermost() {
        let log = Log::default();
        let builder = Worker::builder(WorkerConfig::default())
            .layer(Named("outer", Arc::clone(&log)))
            .layer(Refuse("bob"))
            .layer(Named("inner", Arc::clone(&log)))
            .data(Salutation("hello"))
            .handle(greet);
        let worker = TestWorker::new(builder).unwrap();
        let outcome = worker.run("demo.greet", r#"{"name":"ann"}"#).await;
        assert!(matches!(outcome, TestOutcome::Done(_)), "{outcome:?}");
        let done = "\"hello ann\"";
        let expected =
            ["outer begins", "inner begins", &format!("inner ends: {done}"), &format!("outer ends: {done}")];
        assert_eq!(*std::mem::take(&mut *log.lock().unwrap()), expected);

        let outcome = worker.run("demo.greet", r#"{"name":"bob"}"#).await;
        assert!(matches!(outcome, TestOutcome::Dead { .. }), "{outcome:?}");
        assert_eq!(
            *std::mem::take(&mut *log.lock().unwrap()),
            ["outer begins", "outer ends: bob is refused"]
        );

        // A body that is no payload comes through the layers too: they may have changed it.
        let outcome = worker.run("demo.greet", "{}").await;
        assert!(matches!(outcome, TestOutcome::Dead { .. }), "{outcome:?}");
        assert_eq!(log.lock().unwrap().len(), 4);
    }

    #[test]
    fn a_worker_without_the_data_of_a_handler_or_with_a_late_layer_is_not_built() {
        let build = |builder: crate::WorkerBuilder| builder.build().err().unwrap().to_string();
        let builder = || Worker::builder(WorkerConfig::default());
        assert_eq!(
            build(builder().handle(greet)),
            "the handler of kind \"demo.greet\": the worker has no data of type \
             garenne::layer::tests::Salutation; add it with `.data(…)`"
        );
        assert_eq!(
            build(builder().data(Salutation("a")).data(Salutation("b")).handle(greet)),
            "the worker was given data of type garenne::layer::tests::Salutation twice"
        );
        let late = builder().data(Salutation("a")).handle(greet).layer(Refuse("bob")).build().err().unwrap();
        assert_eq!(
            late.to_string(),
            "a layer was added after the handler of kind \"demo.greet\"; add layers before handlers"
        );
    }
}
