//! The types that one pool works with.

use crate::{
    spec::Spec,
    task::{Completion, Task},
};

/// The task type and the completion type of a pool, as one type parameter of everything inside it.
pub(crate) trait PoolTypes: 'static {
    type Output: Send + 'static;
    type Task: Task<Output = Self::Output>;
    type Completion: Completion<Self::Output>;
}

impl<T: Task, C: Completion<T::Output>> PoolTypes for (T, C) {
    type Output = T::Output;
    type Task = T;
    type Completion = C;
}

/// What is submitted for one task.
pub(crate) type Submission<P> = (Spec, <P as PoolTypes>::Task, <P as PoolTypes>::Completion);
