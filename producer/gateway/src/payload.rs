//! The bytes of a request or line with their memory reservation, and their conversion into tasks.

use std::io::Read;

use garenne_common::config::Size;
use garenne_protocol::task::{NewTask, TaskId};
use garenne_publish::Durability;

use crate::{
    decompress::Encoding,
    left_out::Notes,
    limits::Limits,
    memory::{Reservation, append},
    offload::Offload,
    refusal::Refusal,
};

/// Bodies of at least this many bytes are decompressed and parsed on a blocking thread.
const LARGE: usize = 64 * 1024;
/// Bodies with more records than this are parsed on a blocking thread as well: a small body may have many.
const MANY_RECORDS: usize = 1000;
/// Memory of a record while it is parsed and converted.
pub(super) const RECORD: usize = 1024;
/// Memory of a task besides its fields: its message, its queue entries and its confirm.
const TASK: usize = 320;
/// Memory of an id, including its text in the answer.
const ID: usize = 192;

/// The body of a request, or a line.
pub(super) struct Payload {
    /// The part of a compressed body that is not decompressed yet.
    compressed: Option<Compressed>,
    plain: Vec<u8>,
    /// The reservation of both.
    memory: Reservation,
}

/// A compressed body.
struct Compressed {
    encoding: Encoding,
    /// The length of the compressed bytes.
    length: usize,
    decoder: Box<dyn Read + Send>,
}

/// Ids of tasks that are stored.
#[derive(Debug)]
pub(super) struct Receipts {
    pub(super) ids: Vec<TaskId>,
    pub(super) durability: Durability,
    pub(super) memory: Reservation,
}

/// The tasks of a body, what else its answer tells, and the reservation of the tasks.
pub(super) struct Converted<N> {
    pub(super) tasks: Vec<NewTask>,
    pub(super) notes: N,
    pub(super) memory: Reservation,
}

/// How an upper bound of a body's records is found before it is parsed.
#[derive(Clone, Copy)]
pub(super) enum RecordCount {
    /// The body is one record.
    One,
    /// Every record is an object of which a part is copied. The parser refuses the body at the first record above the
    /// limit.
    Objects,
    /// Every record contains this byte. The parser refuses the body at the first record above the limit.
    Mark(u8),
    /// The memory that the parser needs, in units of [`RECORD`].
    Weight(fn(&[u8]) -> usize),
}

impl RecordCount {
    fn of(self, body: &[u8]) -> usize {
        match self {
            Self::One => 1,
            Self::Objects => memchr::memchr_iter(b'{', body).count(),
            Self::Mark(mark) => memchr::memchr_iter(mark, body).count(),
            Self::Weight(weight) => weight(body),
        }
    }

    /// The memory that parsing the body needs.
    fn reserved(self, body: &[u8], max_records: usize) -> usize {
        let records = match self {
            Self::Objects | Self::Mark(_) => self.of(body).min(max_records.saturating_add(1)),
            Self::One | Self::Weight(_) => self.of(body),
        };
        // Strings with escapes are copied too.
        let is_copied = matches!(self, Self::Objects) || memchr::memchr(b'\\', body).is_some();
        let copied = if is_copied { body.len() } else { 0 };
        records.saturating_mul(RECORD).saturating_add(copied)
    }
}

impl Payload {
    /// A plain body. `memory` is the reservation of its capacity.
    pub(super) fn plain(plain: Vec<u8>, memory: Reservation) -> Self {
        Self { compressed: None, plain, memory }
    }

    /// A compressed body. `memory` is the reservation of its capacity.
    pub(super) fn compressed(
        encoding: Encoding,
        bytes: Vec<u8>,
        mut memory: Reservation,
    ) -> Result<Self, Refusal> {
        let length = bytes.len();
        let decoder = encoding.decoder(bytes, &mut memory)?;
        let compressed = Some(Compressed { encoding, length, decoder });
        Ok(Self { compressed, plain: Vec::new(), memory })
    }

    /// The plain bytes of a body of at most `limit` bytes.
    pub(super) fn small(mut self, limit: Size) -> Result<(Vec<u8>, Reservation), Refusal> {
        self.decompress(usize::MAX, limit)?;
        Ok((self.plain, self.memory))
    }

    /// Converts the body into tasks with `convert`: at once if it is small, else on a blocking thread.
    pub(super) async fn parsed_and_recorded<N: Notes>(
        mut self,
        offload: &Offload,
        limits: &Limits,
        count: RecordCount,
        convert: impl FnOnce(Vec<u8>) -> Result<(Vec<NewTask>, N), Refusal> + Send + 'static,
    ) -> Result<Converted<N>, Refusal> {
        let Limits { max_body, max_records, .. } = *limits;
        if self.decompress_if_small(max_body)? && count.of(&self.plain) <= MANY_RECORDS {
            return self.convert(max_records, count, convert);
        }
        let work = move || {
            self.decompress(usize::MAX, max_body)?;
            self.convert(max_records, count, convert)
        };
        // Boxed, because every request and line holds a future of this function.
        Box::pin(offload.run(work)).await?
    }

    /// Decompresses a small body, or the first [`LARGE`] bytes of another. True if the body is complete and small.
    fn decompress_if_small(&mut self, max_body: Size) -> Result<bool, Refusal> {
        let compressed = self.compressed.as_ref().map_or(0, |body| body.length);
        Ok(compressed < LARGE && self.decompress(LARGE, max_body)? && self.plain.len() < LARGE)
    }

    /// Decompresses until there are `until` plain bytes, at most `limit`. True when the body is complete.
    fn decompress(&mut self, until: usize, limit: Size) -> Result<bool, Refusal> {
        let Some(Compressed { encoding, decoder, .. }) = &mut self.compressed else { return Ok(true) };
        let mut chunk = [0; 8 * 1024];
        while self.plain.len() < until {
            let read = decoder.read(&mut chunk);
            let read =
                read.map_err(|error| Refusal::malformed_body(format!("not {}: {error}", encoding.name())))?;
            if read == 0 {
                self.compressed = None;
                self.memory.shrink_to(self.plain.capacity());
                return Ok(true);
            }
            append(&mut self.plain, &chunk[..read], &mut self.memory, "decompressed body", limit)?;
        }
        Ok(false)
    }

    fn convert<N: Notes>(
        mut self,
        max_records: usize,
        count: RecordCount,
        convert: impl FnOnce(Vec<u8>) -> Result<(Vec<NewTask>, N), Refusal>,
    ) -> Result<Converted<N>, Refusal> {
        // No format has a byte-order mark, but some Windows tools write one.
        if self.plain.starts_with("\u{feff}".as_bytes()) {
            self.plain.drain(.."\u{feff}".len());
        }
        self.memory.grow(count.reserved(&self.plain, max_records))?;
        let (tasks, notes) = convert(self.plain)?;
        self.memory.set(tasks.iter().map(footprint).sum::<usize>() + notes.memory())?;
        Ok(Converted { tasks, notes, memory: self.memory })
    }
}

/// The memory of a task until it is confirmed.
fn footprint(task: &NewTask) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
    size_of::<NewTask>()
        + task.body.capacity()
        // The copies in a batch message and in its frames.
        + 2 * task.body.len()
        + task.id.as_str().len()
        + text(&task.group)
        + text(&task.key)
        + TASK
}

/// The memory that a task needs in addition while it may go to the spool: the copy that is kept until its confirm, or
/// its record, and the bytes that are written.
pub(super) fn spool_footprint(task: &NewTask) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    size_of::<NewTask>()
        + 2 * (task.body.len() + task.id.as_str().len() + text(&task.group) + text(&task.key) + TASK)
}

impl Receipts {
    /// `notes` is the memory of what else the answer has.
    pub(super) fn new(
        ids: Vec<TaskId>,
        durability: Durability,
        notes: usize,
        mut memory: Reservation,
    ) -> Self {
        memory.shrink_to(ids.len() * ID + notes);
        Self { ids, durability, memory }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use flate2::{Compression, write::GzEncoder};
    use garenne_protocol::task::{ContentType, Kind};

    use super::*;
    use crate::memory::MemoryBudget;

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
        if gzip {
            Payload::compressed(Encoding::Gzip, bytes, memory).unwrap()
        } else {
            Payload::plain(bytes, memory)
        }
    }

    fn task(body: Vec<u8>) -> NewTask {
        NewTask::new(Kind::parse("reading.process").unwrap(), ContentType::Json, body)
    }

    /// Runs the parser and returns whether it ran on another thread.
    async fn parsed(budget: &MemoryBudget, payload: Payload) -> Result<(bool, Converted<()>), Refusal> {
        let here = std::thread::current().id();
        let (sender, other_thread) = std::sync::mpsc::channel();
        let held = budget.clone();
        let (offload, limits) = (Offload::new(Duration::from_secs(1)), Limits::default());
        let prepared = payload.parsed_and_recorded(&offload, &limits, RecordCount::Mark(b'{'), move |body| {
            assert!(held.used() >= body.capacity(), "the parsed body is reserved");
            sender.send(std::thread::current().id() != here).unwrap();
            Ok((vec![task(body)], ()))
        });
        let prepared = prepared.await?;
        Ok((other_thread.recv().unwrap(), prepared))
    }

    #[tokio::test]
    async fn large_bodies_and_bodies_with_many_records_are_parsed_on_blocking_threads() {
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
            assert_eq!(budget.used(), footprint(&prepared.tasks[0]), "the memory of the body is released");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_decompression_bomb_is_refused_at_the_limit_and_releases_its_memory() {
        let budget = budget(24);
        let bomb = gzip(&vec![b' '; 8 << 20]);
        assert!(bomb.len() < 10_000);
        let refused = parsed(&budget, payload(&budget, bomb, true)).await.map(|_| ()).unwrap_err();
        assert_eq!(refused.to_string(), "decompressed body is larger than 4MiB");
        assert_eq!(budget.used(), 0);
        let torn =
            parsed(&budget, payload(&budget, b"nonsense".to_vec(), true)).await.map(|_| ()).unwrap_err();
        assert_eq!((torn.status.as_u16(), budget.used()), (400, 0));
    }

    #[tokio::test]
    async fn records_without_memory_are_refused_before_they_are_parsed() {
        let budget = budget(24);
        let body = b"{},".repeat(9_000);
        let others = budget.reserve(11 << 20).unwrap();
        let refused = parsed(&budget, payload(&budget, body.clone(), false)).await.map(|_| ()).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, "busy"));
        assert_eq!(budget.used(), 11 << 20);
        drop(others);
        assert!(parsed(&budget, payload(&budget, body, false)).await.is_ok());
    }

    #[test]
    fn a_statement_above_its_limit_is_refused() {
        let budget = budget(24);
        let limit = Size::kib(64);
        let (plain, memory) = payload(&budget, gzip(b"q=1"), true).small(limit).unwrap();
        assert_eq!((plain.as_slice(), budget.used()), (&b"q=1"[..], plain.capacity()));
        drop(memory);
        let bomb = payload(&budget, gzip(&vec![0; 1 << 20]), true);
        assert_eq!(bomb.small(limit).unwrap_err().to_string(), "decompressed body is larger than 64KiB");
    }
}
