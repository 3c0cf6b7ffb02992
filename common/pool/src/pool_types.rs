//! The types that one pool works with.

use std::marker::PhantomData;

use crate::{
    spec::Spec,
    task::{Completion, Task},
};

/// The task type and the completion type of a pool, as one type parameter of everything inside it. Types with such a
/// parameter can derive `Default`.
pub(crate) trait PoolTypes: Default + 'static {
    type Output: Send + 'static;
    type Task: Task<Output = Self::Output>;
    type Completion: Completion<Self::Output>;
}

/// The types of a [`Pool<T, C>`](crate::Pool).
pub(crate) type TypesOf<T, C> = PhantomData<(T, C)>;

impl<T: Task, C: Completion<T::Output>> PoolTypes for TypesOf<T, C> {
    type Output = T::Output;
    type Task = T;
    type Completion = C;
}

/// A task and its options, as submitted.
pub(crate) type Submission<P> = (Spec, <P as PoolTypes>::Task, <P as PoolTypes>::Completion);
