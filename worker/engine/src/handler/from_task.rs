//! What handlers take besides their payload.

use super::{Data, MissingData, TaskContext, TaskError, WorkerData};

/// An argument of a handler before its payload.
///
/// [`TaskContext`] and [`Data`] implement it. Implement it for values that several handlers read from a task:
///
/// ```
/// # use garenne::{TaskContext, TaskError, handler::FromTask};
/// struct Tenant(String);
///
/// impl FromTask for Tenant {
///     fn from_task(context: &TaskContext) -> Result<Self, TaskError> {
///         let tenant = context.header_text("tenant");
///         Ok(Self(tenant.ok_or_else(|| TaskError::reject("the header tenant is missing"))?.to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler before its payload",
    note = "`TaskContext` and `Data<T>` can, where `.data(…)` gives the worker its `T`; the payload is the last argument"
)]
pub trait FromTask: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// What becomes of the task, whose handler is not called then.
    fn from_task(context: &TaskContext) -> Result<Self, TaskError>;

    /// Whether the worker has the data that [`from_task`](Self::from_task) needs. Called when the worker is built.
    ///
    /// # Errors
    /// The first type that is missing.
    fn check_data(_: &WorkerData) -> Result<(), MissingData> {
        Ok(())
    }
}

impl FromTask for TaskContext {
    fn from_task(context: &TaskContext) -> Result<Self, TaskError> {
        Ok(context.clone())
    }
}

impl<T: Send + Sync + 'static> FromTask for Data<T> {
    fn from_task(context: &TaskContext) -> Result<Self, TaskError> {
        // Checked when the worker was built.
        context.data().ok_or_else(|| TaskError::retry(MissingData::of::<T>()))
    }

    fn check_data(data: &WorkerData) -> Result<(), MissingData> {
        data.get::<T>().map(drop).ok_or_else(MissingData::of::<T>)
    }
}
