//! One look at all partitions of a Fetch: what is there to answer now.

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId, TopicId};
use felix_storage::ReadError;

use super::session::{Key, TopicKey, Wanted};
use crate::partitions::{Isolation, PartitionHandle, Partitions};
use crate::view::{leader, other_leader};
use crate::wire_code::WireCode;

use bytes::Bytes;

/// What one answer may copy from the page cache on a thread that serves connections: a larger one is read on a
/// reader's thread. 50 MiB, the Java consumer's default, are tens of milliseconds.
const MOST_INLINE_BYTES: usize = 1024 * 1024;

/// What a request wants, all partitions together.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The partitions, in the order in which their records are taken.
    pub wanted: Vec<(Key, Wanted)>,
    /// How far it may read.
    pub isolation: Isolation,
    /// The broker that is asked.
    pub here: BrokerId,
}

/// How one look may read.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// At most so many bytes of records, unless the very first batch is larger.
    pub max_bytes: usize,
    /// It may wait for the disk; otherwise it rather gives up.
    pub may_block: bool,
}

/// What is answered for one partition.
#[derive(Debug)]
pub struct PartitionAnswer {
    /// The error, or none.
    pub error: ErrorCode,
    /// The topic as far as it is known.
    pub topic: TopicId,
    /// High watermark, or -1.
    pub mark: Offset,
    /// Last stable offset, or -1.
    pub last_stable: Offset,
    /// Log start, or -1.
    pub log_start: Offset,
    /// Where the client's log leaves ours: the epoch and its end.
    pub diverging: Option<(i32, Offset)>,
    /// Who leads, where the client does not know that, and at which epoch.
    pub leader: Option<(BrokerId, i32)>,
    /// Stored batches.
    pub records: Vec<Bytes>,
    /// Bytes of them.
    pub bytes: usize,
}

/// What one look brought.
pub struct Look {
    /// One answer for each wanted partition, in order.
    pub answers: Vec<PartitionAnswer>,
    /// Bytes of records in all of them.
    pub bytes: usize,
    /// Memory that these records hold: they may be slices of larger buffers.
    pub held: usize,
    /// Whether more records are there than the size lets through.
    pub is_full: bool,
    /// Whether waiting could not make the answer any better.
    pub final_answer: bool,
    /// The partitions to wait on, with the end that was visible.
    pub led: Vec<(PartitionHandle, Offset)>,
}

/// Why the look must be repeated on a thread that may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WouldBlock;

/// What a reader of one partition must not do.
enum Stop {
    Fails(ErrorCode),
    Diverges(i32, Offset),
    WouldBlock,
}

impl From<ErrorCode> for Stop {
    fn from(code: ErrorCode) -> Stop {
        Stop::Fails(code)
    }
}

impl Reading {
    /// Looks at every partition.
    pub fn look(&self, view: &View, partitions: &Partitions, how: How) -> Result<Look, WouldBlock> {
        let mut look = Look {
            answers: Vec::with_capacity(self.wanted.len()),
            bytes: 0,
            held: 0,
            is_full: false,
            final_answer: self.wanted.is_empty(),
            led: Vec::with_capacity(self.wanted.len()),
        };
        for (key, wanted) in &self.wanted {
            let mut answer = PartitionAnswer::unknown();
            match self.look_at(view, partitions, key, wanted, how, &mut answer, &mut look) {
                Ok(()) => {}
                Err(Stop::WouldBlock) => return Err(WouldBlock),
                Err(Stop::Fails(code)) => {
                    answer.error = code;
                    look.final_answer = true;
                }
                Err(Stop::Diverges(epoch, end)) => {
                    answer.diverging = Some((epoch, end));
                    look.final_answer = true;
                }
            }
            look.bytes += answer.bytes;
            look.answers.push(answer);
        }
        Ok(look)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of the loop above, split off for its early returns"
    )]
    fn look_at(
        &self,
        view: &View,
        partitions: &Partitions,
        key: &Key,
        wanted: &Wanted,
        how: How,
        answer: &mut PartitionAnswer,
        look: &mut Look,
    ) -> Result<(), Stop> {
        let topic = match &key.topic {
            TopicKey::Name(name) => view.topic_named(name).ok_or(ErrorCode::UnknownTopicOrPartition)?,
            TopicKey::Id(id) => view.topic(id).ok_or(ErrorCode::UnknownTopicId)?,
        };
        answer.topic = topic.id;
        if !(0..topic.partition_count).contains(&key.partition) {
            return Err(ErrorCode::UnknownTopicOrPartition.into());
        }
        let id = PartitionId { topic: topic.id, index: key.partition };
        let Some(handle) = partitions.get(&id).filter(PartitionHandle::may_read) else {
            answer.leader = other_leader(view, &id, self.here);
            return Err(ErrorCode::NotLeaderOrFollower.into());
        };
        let visible_end = handle.visible_end(self.isolation);
        answer.mark = handle.mark();
        answer.last_stable = handle.last_stable();
        answer.log_start = handle.log_start();
        if wanted.current_epoch >= 0 {
            let ours = handle.generation().leader_epoch();
            if wanted.current_epoch < ours {
                answer.leader = leader(view, &id);
                return Err(ErrorCode::FencedLeaderEpoch.into());
            }
            if wanted.current_epoch > ours {
                return Err(ErrorCode::UnknownLeaderEpoch.into());
            }
        }
        if wanted.offset < answer.log_start {
            return Err(ErrorCode::OffsetOutOfRange.into());
        }
        // Asked before the end is: a reader that is ahead because its history is another one can go on from where the two part.
        diverges(&handle, wanted)?;
        if wanted.offset > handle.log_end() {
            return Err(ErrorCode::OffsetOutOfRange.into());
        }
        if wanted.offset < visible_end {
            self.read(&handle, wanted, visible_end, how, answer, look)?;
        } else if !handle.is_leader() {
            // Without the lease what is there may be read, but nothing will come: a consumer that has everything would wait here
            // while others lead.
            answer.leader = other_leader(view, &id, self.here);
            return Err(ErrorCode::NotLeaderOrFollower.into());
        }
        look.led.push((handle, visible_end));
        Ok(())
    }

    fn read(
        &self,
        handle: &PartitionHandle,
        wanted: &Wanted,
        end: Offset,
        how: How,
        answer: &mut PartitionAnswer,
        look: &mut Look,
    ) -> Result<(), Stop> {
        let How { max_bytes, may_block } = how;
        let first = look.bytes == 0;
        let left = max_bytes.saturating_sub(look.bytes);
        if left == 0 && !first {
            // More is there than the whole answer may hold.
            look.final_answer = true;
            look.is_full = true;
            return Ok(());
        }
        let most = usize::try_from(wanted.max_bytes).unwrap_or(0).min(left);
        let reader = handle.reader();
        let read = if may_block {
            reader.read_records(wanted.offset, most, end, first)
        } else {
            let inline = most.min(MOST_INLINE_BYTES.saturating_sub(look.bytes));
            reader.read_records_nowait(wanted.offset, inline, end, first)
        };
        match read {
            // More is wanted and there than may be copied where other connections wait.
            Ok(read) if !may_block && read.next < end && look.bytes + most > MOST_INLINE_BYTES => {
                Err(Stop::WouldBlock)
            }
            Ok(read) => {
                if read.next < end {
                    look.final_answer = true;
                    look.is_full |= most == left;
                }
                look.held += read.held;
                answer.bytes = read.bytes;
                answer.records = read.slices;
                Ok(())
            }
            Err(ReadError::WouldBlock) => Err(Stop::WouldBlock),
            Err(error) => {
                if matches!(error, ReadError::Damaged(_) | ReadError::Io { .. }) {
                    tracing::error!(partition = %handle.id(), offset = wanted.offset, %error, "a read failed");
                }
                Err(error.code().into())
            }
        }
    }
}

/// Whether the client's last record is not of our log: then it must cut its log back before it reads on.
fn diverges(handle: &PartitionHandle, wanted: &Wanted) -> Result<(), Stop> {
    let Some(last) = Generation::from_leader_epoch(wanted.last_epoch) else { return Ok(()) };
    let end = handle.reader().generation_end(last).ok_or(ErrorCode::OffsetOutOfRange)?;
    let epoch = end.generation.ok_or(ErrorCode::OffsetOutOfRange)?;
    if epoch < last || end.end < wanted.offset {
        return Err(Stop::Diverges(epoch.leader_epoch(), end.end));
    }
    Ok(())
}

impl PartitionAnswer {
    fn unknown() -> PartitionAnswer {
        PartitionAnswer {
            error: ErrorCode::None,
            topic: TopicId::NONE,
            mark: -1,
            last_stable: -1,
            log_start: -1,
            diverging: None,
            leader: None,
            records: Vec::new(),
            bytes: 0,
        }
    }
}
