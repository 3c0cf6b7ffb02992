//! The headers of a task's message, as handlers read them.

use garenne_protocol::task::{HeaderValue, header};

use super::TaskContext;

impl TaskContext {
    /// The header `name` of the task's message, which the publisher or a worker set. A record of a batch has the headers of
    /// the batch.
    ///
    /// [`None`] if there is none, and for tables, arrays, bytes that are no text and other types that [`HeaderValue`] has not.
    pub fn header(&self, name: &str) -> Option<HeaderValue<'_>> {
        HeaderValue::read(header::get(self.message_headers(), name)?)
    }

    /// The header `name`, if it is a text.
    pub fn header_text(&self, name: &str) -> Option<&str> {
        match self.header(name)? {
            HeaderValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The names and values of all headers that [`header`](Self::header) can read, sorted by name. Names that begin with
    /// `garenne-` are those of Garenne.
    pub fn headers(&self) -> impl Iterator<Item = (&str, HeaderValue<'_>)> {
        let all = self.message_headers().iter().flat_map(|headers| headers.inner());
        all.filter_map(|(name, value)| Some((name.as_str(), HeaderValue::read(value)?)))
    }
}
