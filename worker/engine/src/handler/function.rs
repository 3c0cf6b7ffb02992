//! Async functions as handlers.
//!
//! What a handler must be is divided among several traits, each with one implementation that can apply. So the compiler names
//! the argument, the result or the line that is wrong, and not only the function.

use super::{FromTask, IntoOutput, MissingData, Output, Payload, Task, TaskError, WorkerData};

/// An async function that runs the tasks of one kind.
///
/// Its last argument is a [`Payload`]. Those before it implement [`FromTask`]: [`TaskContext`](super::TaskContext),
/// [`Data`](super::Data) and types of your own, up to eight. It returns a [`Result`] whose value is an [output](IntoOutput)
/// and whose error converts into a [`TaskError`]; [`garenne::Result`](crate::Result) takes any error.
///
/// ```
/// # use garenne::{Data, TaskContext};
/// # #[derive(serde::Deserialize)]
/// # struct Mail { to: String }
/// # garenne::json_payload!(Mail, "email.send");
/// # struct Mailer;
/// # impl Mailer { async fn send(&self, _: &str) -> std::io::Result<usize> { Ok(1) } }
/// async fn send(context: TaskContext, mailer: Data<Mailer>, mail: Mail) -> garenne::Result<usize> {
///     println!("{}", context.id());
///     Ok(mailer.send(&mail.to).await?)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "a handler is an `async fn` with 1 to 9 arguments, of which the last is a `Payload`",
    note = "a closure must not consume what it captures; `.data(…)` and an argument `Data<T>` share values with handlers"
)]
pub trait Handler<A>: Send + Sync + 'static {
    /// The type of its payload.
    type Payload: Payload;

    /// Runs a task.
    fn call(&self, task: Task) -> impl Future<Output = Result<Output, TaskError>> + Send;

    /// Whether the worker has the data that its arguments need.
    ///
    /// # Errors
    /// The first type that [`WorkerBuilder::data`](crate::WorkerBuilder::data) was not given.
    fn check_data(data: &WorkerData) -> Result<(), MissingData>;
}

impl<F, A> Handler<A> for F
where
    F: AsyncFunction<A>,
    A: Arguments,
    F::Future: Future<Output: HandlerResult> + Send,
{
    type Payload = A::Payload;

    fn call(&self, task: Task) -> impl Future<Output = Result<Output, TaskError>> + Send {
        // The arguments are read before the future starts, so that it does not hold the body.
        let running = A::read(task).map(|arguments| self.start(arguments));
        async move { running?.await.into_result() }
    }

    fn check_data(data: &WorkerData) -> Result<(), MissingData> {
        A::check_data(data)
    }
}

/// A function that returns a future: the shape of a [`Handler`].
pub trait AsyncFunction<A>: Send + Sync + 'static {
    /// What it returns.
    type Future;

    /// Calls it.
    fn start(&self, arguments: A) -> Self::Future;
}

/// The arguments of a [`Handler`]: any number that implement [`FromTask`], then a [`Payload`].
pub trait Arguments: Sized {
    /// The last one.
    type Payload: Payload;

    /// Reads them from a task.
    ///
    /// # Errors
    /// What becomes of the task, whose handler is not called then.
    fn read(task: Task) -> Result<Self, TaskError>;

    /// As [`Handler::check_data`].
    ///
    /// # Errors
    /// The first type that is missing.
    fn check_data(data: &WorkerData) -> Result<(), MissingData>;
}

macro_rules! arguments {
    ($($argument:ident)*) => {
        impl<F, $($argument,)* P, R> AsyncFunction<($($argument,)* P,)> for F
        where
            F: Fn($($argument,)* P) -> R + Send + Sync + 'static,
        {
            type Future = R;

            #[expect(non_snake_case, reason = "variables have the names of their types")]
            fn start(&self, ($($argument,)* P,): ($($argument,)* P,)) -> R {
                self($($argument,)* P)
            }
        }

        impl<$($argument: FromTask,)* P: Payload> Arguments for ($($argument,)* P,) {
            type Payload = P;

            fn read(task: Task) -> Result<Self, TaskError> {
                let Task { context: _context, content_type, body } = task;
                let payload = P::read(content_type, &body)?;
                drop(body);
                Ok(($($argument::from_task(&_context)?,)* payload,))
            }

            fn check_data(_data: &WorkerData) -> Result<(), MissingData> {
                $($argument::check_data(_data)?;)*
                Ok(())
            }
        }
    };
}

arguments!();
arguments!(A1);
arguments!(A1 A2);
arguments!(A1 A2 A3);
arguments!(A1 A2 A3 A4);
arguments!(A1 A2 A3 A4 A5);
arguments!(A1 A2 A3 A4 A5 A6);
arguments!(A1 A2 A3 A4 A5 A6 A7);
arguments!(A1 A2 A3 A4 A5 A6 A7 A8);

/// What a [`Handler`] returns: a [`Result`] of an [output](IntoOutput) and an error that converts into a [`TaskError`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "returns `{Self}`",
    note = "it returns a `Result`, such as `garenne::Result<()>`"
)]
pub trait HandlerResult {
    /// The output, or what becomes of the task.
    ///
    /// # Errors
    /// What becomes of the task.
    fn into_result(self) -> Result<Output, TaskError>;
}

impl<O: IntoOutput, E: HandlerError> HandlerResult for Result<O, E> {
    fn into_result(self) -> Result<Output, TaskError> {
        self.map_err(E::into_task_error)?.into_output()
    }
}

/// An error that a [`Handler`] can return: one that converts into a [`TaskError`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what becomes of a task",
    label = "not the error of a handler",
    note = "return `garenne::Result<O>`, where `?` takes any error; for an error of your own, implement `From<{Self}>` for `garenne::TaskError`"
)]
pub trait HandlerError {
    /// What becomes of the task.
    fn into_task_error(self) -> TaskError;
}

#[diagnostic::do_not_recommend]
impl<E: Into<TaskError>> HandlerError for E {
    fn into_task_error(self) -> TaskError {
        self.into()
    }
}
