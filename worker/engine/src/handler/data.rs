//! Data that the handlers of a worker share.

use std::{
    any::{Any, TypeId, type_name},
    collections::BTreeMap,
    fmt,
    ops::Deref,
    sync::Arc,
};

/// A value that all handlers of a worker share, such as a client or a database pool: the argument of a handler for what
/// [`WorkerBuilder::data`](crate::WorkerBuilder::data) was given. A value that the program keeps as well is given in an
/// [`Arc`]: `data(Arc::clone(&mailer))`.
///
/// ```
/// # use garenne::{Data, Worker, WorkerConfig};
/// # #[derive(serde::Deserialize)]
/// # struct Mail { to: String }
/// # garenne::json_payload!(Mail, "email.send");
/// struct Mailer {
///     server: String,
/// }
///
/// async fn send(mailer: Data<Mailer>, mail: Mail) -> garenne::Result<String> {
///     Ok(format!("{} through {}", mail.to, mailer.server))
/// }
///
/// let mailer = Mailer { server: "smtp.example.org".into() };
/// let worker = Worker::builder(WorkerConfig::default()).data(mailer).handle(send).build();
/// assert!(worker.is_ok());
/// ```
pub struct Data<T: ?Sized>(Arc<T>);

impl<T: ?Sized> Data<T> {
    /// The shared value itself.
    pub fn into_inner(self) -> Arc<T> {
        self.0
    }
}

impl<T: ?Sized> Clone for Data<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> Deref for Data<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Data<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Data").field(&&*self.0).finish()
    }
}

/// The worker was not given data that a handler needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has no data of type {type_name}; add it with `.data(…)`")]
#[non_exhaustive]
pub struct MissingData {
    /// The type.
    pub type_name: &'static str,
}

impl MissingData {
    pub(super) fn of<T>() -> Self {
        Self { type_name: type_name::<T>() }
    }
}

/// The data that a worker was given, by type.
#[derive(Clone, Default)]
pub struct WorkerData(BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl WorkerData {
    /// The value of a type, also if it was given in an [`Arc`].
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Data<T>> {
        if let Some(value) = self.0.get(&TypeId::of::<T>()) {
            return Arc::clone(value).downcast().ok().map(Data);
        }
        let shared = self.0.get(&TypeId::of::<Arc<T>>())?;
        shared.downcast_ref::<Arc<T>>().cloned().map(Data)
    }

    /// Adds a value. Returns whether there was none of its type.
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: Arc<T>) -> bool {
        self.0.insert(TypeId::of::<T>(), value).is_none()
    }
}
