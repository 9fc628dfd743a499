//! A leader's log on its way to a follower, and what the follower says to it.

use bytes::Bytes;

use super::wire::{In, Out, PeerError};
use crate::ids::{Generation, LogId, Offset, PartitionId};

/// Parts for any number of partitions. Each part is answered once, in one frame or several, all under the
/// request's correlation id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ship {
    /// One a partition, or more; those of one partition in the order in which they are to be taken.
    pub parts: Vec<Part>,
}

/// One partition's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The partition.
    pub partition: PartitionId,
    /// The revision of its key that the leader knows. A copy is made only when the receiver's view, at or past it, lists the
    /// receiver among the replicas; until then it answers [`Said::Retry`].
    pub key_revision: u64,
    /// The tenure.
    pub generation: Generation,
    /// The copy that the leader means; none before the first answer.
    pub log: Option<LogId>,
    /// What the follower is to compare with its own log before it takes anything (T1).
    pub header: Option<TenureHeader>,
    /// The leader's mark.
    pub mark: Offset,
    /// First offset of the leader's log.
    pub log_start: Offset,
    /// One past the last record of it.
    pub log_end: Offset,
    /// The records are all that the leader has in [from, next).
    pub from: Offset,
    /// See `from`. Equal to it where nothing is to be shipped.
    pub next: Offset,
    /// The generation of whatever stands before `from` in the leader's log, by its map: the follower's map must say the same.
    pub before: Option<Generation>,
    /// Whole batches, as they are stored, in any number of slices.
    pub records: Vec<Bytes>,
}

/// See [`Part::header`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenureHeader {
    /// The leader's log end when the tenure began.
    pub begins: Offset,
    /// The first offset that the leader can ship from: at or below its log start, which may lie within a batch.
    pub base: Offset,
    /// Entries of its generation map, oldest first. Not checked here: generations and offsets must both rise.
    pub entries: Vec<(Generation, Offset)>,
    /// Entries of older generations than this one are left out.
    pub complete_from: Generation,
    /// The newest unclean promotion.
    pub unclean_at: Option<Generation>,
}

/// Answers to parts of a ship request, or to a bootstrap or rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// In the order of the parts, as far as they are of one partition.
    pub answers: Vec<Answer>,
}

/// What a follower says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The partition.
    pub partition: PartitionId,
    /// The generation that the copy accepts; durable before this is said (C7).
    pub generation: Generation,
    /// The copy; none where there is none.
    pub log: Option<LogId>,
    /// One past the last record on its disk, as the flush policy counts.
    pub end: Offset,
    /// What it says.
    pub said: Said,
}

/// See [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Reconciled with the leader, and everything below `end` is stored.
    Stored,
    /// The generation is older than the one accepted.
    Fenced,
    /// The part begins behind the end.
    LogGap,
    /// A header must come first: nothing was compared with this leader yet.
    NeedHeader,
    /// Entries of the map since that generation are needed (T5).
    NeedMap(Generation),
    /// Not now, the same again later.
    Retry,
    /// The copy has stopped, for a reason by its number (`felix_replication::halted`).
    Halted(u8),
    /// The message names another copy or tenure than the one here, or asks for what is not allowed.
    Refused,
    /// Nothing is here, and the leader's log begins later: to be bootstrapped.
    Empty,
    /// Something of a newer version.
    Other(u8),
}

/// The least bytes of a part: its structure's length, the fixed fields, and the length of its records.
const LEAST_PART: usize = 4 + 20 + 8 + 4 + 1 + 1 + 5 * 8 + 1 + 4;
const LEAST_ANSWER: usize = 4 + 20 + 4 + 1 + 8 + 1;

impl Ship {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        out.list("parts", &self.parts, |out, part| part.put(out));
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<Ship, PeerError> {
        Ok(Ship { parts: input.list("parts", LEAST_PART, Part::take)? })
    }
}

impl Part {
    fn put(&self, out: &mut Out) {
        out.structure("part", |out| {
            out.partition(&self.partition);
            out.u64(self.key_revision);
            out.generation(self.generation);
            out.option(self.log, Out::log);
            out.option(self.header.as_ref(), |out, header| header.put(out));
            for offset in [self.mark, self.log_start, self.log_end, self.from, self.next] {
                out.offset(offset);
            }
            out.option(self.before, Out::generation);
        });
        out.records(&self.records);
    }

    fn take(input: &mut In) -> Result<Part, PeerError> {
        let mut fields = input.structure("part")?;
        let part = Part {
            partition: fields.partition()?,
            key_revision: fields.u64("key revision")?,
            generation: fields.generation("generation")?,
            log: fields.option("log id", |fields| fields.log("log id"))?,
            header: fields.option("tenure header", TenureHeader::take)?,
            mark: fields.offset("mark")?,
            log_start: fields.offset("log start")?,
            log_end: fields.offset("log end")?,
            from: fields.offset("from")?,
            next: fields.offset("next")?,
            before: fields.option("generation before", |fields| fields.generation("generation before"))?,
            records: Vec::new(),
        };
        let records = input.bytes("records")?;
        if part.next < part.from {
            return Err(PeerError::Value("next"));
        }
        let records = if records.is_empty() { Vec::new() } else { vec![records] };
        Ok(Part { records, ..part })
    }

    /// Bytes of all records.
    pub fn record_bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }
}

impl TenureHeader {
    fn put(&self, out: &mut Out) {
        out.structure("tenure header", |out| {
            out.offset(self.begins);
            out.offset(self.base);
            out.list("generations", &self.entries, |out, (generation, first)| {
                out.generation(*generation);
                out.offset(*first);
            });
            out.generation(self.complete_from);
            out.option(self.unclean_at, Out::generation);
        });
    }

    fn take(input: &mut In) -> Result<TenureHeader, PeerError> {
        let mut fields = input.structure("tenure header")?;
        Ok(TenureHeader {
            begins: fields.offset("beginning of the tenure")?,
            base: fields.offset("base of the log")?,
            entries: fields.list("generations", 12, |fields| {
                Ok((fields.generation("generation")?, fields.offset("first offset")?))
            })?,
            complete_from: fields.generation("oldest complete generation")?,
            unclean_at: fields.option("unclean at", |fields| fields.generation("unclean at"))?,
        })
    }
}

impl Answers {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        out.list("answers", &self.answers, |out, answer| answer.put(out));
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<Answers, PeerError> {
        Ok(Answers { answers: input.list("answers", LEAST_ANSWER, Answer::take)? })
    }
}

impl Answer {
    fn put(&self, out: &mut Out) {
        out.structure("answer", |out| {
            out.partition(&self.partition);
            out.generation(self.generation);
            out.option(self.log, Out::log);
            out.offset(self.end);
            let (number, detail) = match self.said {
                Said::Stored => (0, None),
                Said::Fenced => (1, None),
                Said::LogGap => (2, None),
                Said::NeedHeader => (3, None),
                Said::NeedMap(since) => (4, Some(since.number())),
                Said::Retry => (5, None),
                Said::Halted(reason) => (6, Some(u32::from(reason))),
                Said::Refused => (7, None),
                Said::Empty => (8, None),
                Said::Other(number) => (number, None),
            };
            out.u8(number);
            if let Some(detail) = detail {
                out.u32(detail);
            }
        });
    }

    fn take(input: &mut In) -> Result<Answer, PeerError> {
        let mut fields = input.structure("answer")?;
        let (partition, generation) = (fields.partition()?, fields.generation("generation")?);
        let log = fields.option("log id", |fields| fields.log("log id"))?;
        let end = fields.offset("end")?;
        let said = match fields.u8("answer")? {
            0 => Said::Stored,
            1 => Said::Fenced,
            2 => Said::LogGap,
            3 => Said::NeedHeader,
            4 => Said::NeedMap(fields.generation("oldest generation")?),
            5 => Said::Retry,
            6 => Said::Halted(u8::try_from(fields.u32("reason")?).unwrap_or(u8::MAX)),
            7 => Said::Refused,
            8 => Said::Empty,
            other => Said::Other(other),
        };
        Ok(Answer { partition, generation, log, end, said })
    }
}
