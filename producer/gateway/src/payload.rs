//! A request's body or a line with the memory reserved for it, and its way to tasks.

use std::io::{Cursor, Read};

use flate2::read::MultiGzDecoder;
use garenne_common::config::Size;
use garenne_protocol::task::{NewTask, TaskId};

use crate::{
    memory::{Reservation, append},
    offload::Offload,
    refusal::Refusal,
};

/// Bodies of this size are parsed on a blocking thread, and inflated there beyond it.
const LARGE: usize = 64 * 1024;
/// So are bodies of this many records: what a small body holds may still be much work.
const MANY_RECORDS: usize = 1000;
/// What a decoder holds: its window and tables.
const DECODER: usize = 64 * 1024;
/// What a record holds at least while it is parsed and becomes a task.
const RECORD: usize = 1024;
/// What a task holds besides its fields: a copy in a message, its place in queues, its confirm.
const TASK: usize = 320;
/// What an id holds in a receipt, its text in the answer included.
const ID: usize = 192;

/// Bytes that were received.
pub(super) struct Payload {
    bytes: Vec<u8>,
    gzip: bool,
    memory: Reservation,
}

/// Tasks that are checked and not delivered yet.
pub(super) struct Prepared {
    pub(super) tasks: Vec<NewTask>,
    pub(super) memory: Reservation,
}

/// Ids of tasks that are safe.
#[derive(Debug)]
pub(super) struct Receipts {
    pub(super) ids: Vec<TaskId>,
    pub(super) memory: Reservation,
}

/// How many records a body has at most, from a pass over its bytes.
pub(super) type CountRecords = fn(&[u8]) -> usize;

/// Every record of JSON is an object.
pub(super) fn json_records(body: &[u8]) -> usize {
    memchr::memchr_iter(b'{', body).count()
}

/// Every reading of InfluxDB's line protocol is a field with its value.
pub(super) fn influx_records(body: &[u8]) -> usize {
    memchr::memchr_iter(b'=', body).count()
}

/// A task's payload is one record.
pub(super) fn one_record(_: &[u8]) -> usize {
    1
}

/// Limits on what is parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) body: Size,
    pub(super) records: usize,
}

impl Payload {
    /// Bytes whose capacity is reserved in `memory`, compressed where `gzip` says so.
    pub(super) fn new(bytes: Vec<u8>, gzip: bool, memory: Reservation) -> Self {
        Self { bytes, gzip, memory }
    }

    /// The plain bytes of a body that has to be small.
    ///
    /// # Errors
    /// It is larger than `most`, or not what it says.
    pub(super) fn small(self, most: Size) -> Result<(Vec<u8>, Reservation), Refusal> {
        let mut inflating = Inflating::new(self, most)?;
        inflating.advance(usize::MAX)?;
        Ok((inflating.plain, inflating.memory))
    }

    /// Turns it into tasks with `parse`: here where that is little work, else on a thread for large bodies.
    ///
    /// # Errors
    /// What `parse` refuses, the limits, or no memory for the records.
    pub(super) async fn prepare(
        self,
        offload: &Offload,
        bounds: Bounds,
        count: CountRecords,
        parse: impl FnOnce(Vec<u8>) -> Result<Vec<NewTask>, Refusal> + Send + 'static,
    ) -> Result<Prepared, Refusal> {
        let compressed = if self.gzip { self.bytes.len() } else { 0 };
        let mut inflating = Inflating::new(self, bounds.body)?;
        let small = compressed < LARGE && inflating.advance(LARGE)? && inflating.plain.len() < LARGE;
        if small && count(&inflating.plain) <= MANY_RECORDS {
            return inflating.finish(bounds, count, parse);
        }
        offload
            .run(move || {
                inflating.advance(usize::MAX)?;
                inflating.finish(bounds, count, parse)
            })
            .await?
    }
}

/// A body on its way to plain bytes, never more of them than allowed, whatever the compressed ones promise.
struct Inflating {
    compressed: Option<MultiGzDecoder<Cursor<Vec<u8>>>>,
    plain: Vec<u8>,
    memory: Reservation,
    most: Size,
}

impl Inflating {
    fn new(Payload { bytes, gzip, mut memory }: Payload, most: Size) -> Result<Self, Refusal> {
        let (compressed, plain) = if gzip {
            memory.grow(DECODER)?;
            (Some(MultiGzDecoder::new(Cursor::new(bytes))), Vec::new())
        } else {
            (None, bytes)
        };
        Ok(Self { compressed, plain, memory, most })
    }

    /// Inflates until there are so many plain bytes; true once there are no more to come.
    fn advance(&mut self, until: usize) -> Result<bool, Refusal> {
        let Some(decoder) = &mut self.compressed else { return Ok(true) };
        let mut piece = [0; 8 * 1024];
        while self.plain.len() < until {
            let read = decoder.read(&mut piece);
            let read = read.map_err(|error| Refusal::NotJson(format!("not gzip: {error}")))?;
            if read == 0 {
                self.compressed = None;
                self.memory.shrink_to(self.plain.capacity());
                return Ok(true);
            }
            append(&mut self.plain, &piece[..read], &mut self.memory, "decompressed body", self.most)?;
        }
        Ok(false)
    }

    fn finish(
        self,
        bounds: Bounds,
        count: CountRecords,
        parse: impl FnOnce(Vec<u8>) -> Result<Vec<NewTask>, Refusal>,
    ) -> Result<Prepared, Refusal> {
        let Self { plain, mut memory, .. } = self;
        // A string with an escape is copied while it is read.
        let escaped = if memchr::memchr(b'\\', &plain).is_some() { plain.len() } else { 0 };
        // One record beyond the limit is read before it is refused.
        let records = count(&plain).min(bounds.records.saturating_add(1));
        memory.grow(escaped + records * RECORD)?;
        let tasks = parse(plain)?;
        memory.set(tasks.iter().map(footprint).sum())?;
        Ok(Prepared { tasks, memory })
    }
}

/// What a task makes this process hold until it is confirmed.
fn footprint(task: &NewTask) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
    size_of::<NewTask>()
        + task.body.capacity()
        // In a message of several tasks, and in the frames of that message.
        + 2 * task.body.len()
        + task.id.as_str().len()
        + text(&task.group)
        + text(&task.key)
        + TASK
}

impl Receipts {
    pub(super) fn new(ids: Vec<TaskId>, mut memory: Reservation) -> Self {
        memory.shrink_to(ids.len() * ID);
        Self { ids, memory }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use flate2::{Compression, write::GzEncoder};
    use garenne_protocol::task::{ContentType, Kind};

    use super::*;
    use crate::{limits::Limits, memory::MemoryBudget};

    const BOUNDS: Bounds = Bounds { body: Size::mib(4), records: 10_000 };

    fn budget(mib: u64) -> MemoryBudget {
        MemoryBudget::new(&Limits { memory_budget: Size::mib(mib), ..Limits::default() })
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn payload(budget: &MemoryBudget, bytes: Vec<u8>, gzip: bool) -> Payload {
        let memory = budget.reserve(bytes.capacity()).unwrap();
        Payload::new(bytes, gzip, memory)
    }

    fn task(body: Vec<u8>) -> NewTask {
        NewTask::new(Kind::parse("reading.process").unwrap(), ContentType::Json, body)
    }

    /// Runs the parser where it is told to and answers whether that was a thread of its own.
    async fn parsed(budget: &MemoryBudget, payload: Payload) -> Result<(bool, Prepared), Refusal> {
        let here = std::thread::current().id();
        let (told, elsewhere) = std::sync::mpsc::channel();
        let held = budget.clone();
        let offload = Offload::new(Duration::from_secs(1));
        let prepared = payload.prepare(&offload, BOUNDS, json_records, move |body| {
            assert!(held.used() >= body.capacity(), "what is parsed is reserved");
            told.send(std::thread::current().id() != here).unwrap();
            Ok(vec![task(body)])
        });
        let prepared = prepared.await?;
        Ok((elsewhere.recv().unwrap(), prepared))
    }

    #[tokio::test]
    async fn large_bodies_and_bodies_of_many_records_leave_the_runtime() {
        let budget = budget(24);
        for (body, compressed, elsewhere) in [
            (b"{}".to_vec(), false, false),
            (gzip(b"{}"), true, false),
            (vec![b' '; LARGE], false, true),
            (gzip(&vec![b' '; LARGE]), true, true),
            (b"{}".repeat(MANY_RECORDS + 1), false, true),
        ] {
            let plain = if compressed { 2.max(body.len()) } else { body.len() };
            let (was, prepared) = parsed(&budget, payload(&budget, body, compressed)).await.unwrap();
            assert_eq!(was, elsewhere, "{plain} bytes");
            assert_eq!(budget.used(), footprint(&prepared.tasks[0]), "the body's own memory is released");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_bomb_stops_at_the_limit_and_leaves_nothing_reserved() {
        let budget = budget(24);
        let bomb = gzip(&vec![b' '; 8 << 20]);
        assert!(bomb.len() < 10_000);
        let refused = parsed(&budget, payload(&budget, bomb, true)).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "decompressed body is over 4MiB");
        assert_eq!(budget.used(), 0);
        let torn =
            parsed(&budget, payload(&budget, b"nonsense".to_vec(), true)).await.map(|_| ()).unwrap_err();
        assert_eq!((torn.status(), budget.used()), (400, 0));
    }

    #[tokio::test]
    async fn records_that_do_not_fit_are_refused_before_they_are_parsed() {
        let budget = budget(24);
        let body = b"{},".repeat(9_000);
        let others = budget.reserve(11 << 20).unwrap();
        let refused = parsed(&budget, payload(&budget, body.clone(), false)).await.map(|_| ()).unwrap_err();
        assert_eq!((refused.status(), refused.code()), (503, "busy"));
        assert_eq!(budget.used(), 11 << 20);
        drop(others);
        assert!(parsed(&budget, payload(&budget, body, false)).await.is_ok());
    }

    #[test]
    fn a_small_body_has_to_be_small() {
        let budget = budget(24);
        let most = Size::kib(64);
        let (plain, memory) = payload(&budget, gzip(b"q=1"), true).small(most).unwrap();
        assert_eq!((plain.as_slice(), budget.used()), (&b"q=1"[..], plain.capacity()));
        drop(memory);
        let bomb = payload(&budget, gzip(&vec![0; 1 << 20]), true);
        assert_eq!(bomb.small(most).unwrap_err().to_string(), "decompressed body is over 64KiB");
    }
}
