//! Offsets by timestamp (ListOffsets): exact, inside compressed batches and where timestamps are in disorder.

use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::scan::{self, Batch};
use felix_protocol::ids::Offset;

use super::read::{ATTEMPTS, LogReader};
use super::{Found, Shared};
use crate::disk::Disk;
use crate::error::ReadError;
use crate::segment::Segment;
use crate::segment::walk::{Broken, Step, Walk};

impl<D: Disk> LogReader<D> {
    /// The first record below `limit`, in log order, whose timestamp is at least `timestamp`.
    pub fn offset_for_timestamp(&self, timestamp: i64, limit: Offset) -> Result<Option<Found>, ReadError> {
        let shared = self.shared();
        shared.look(|end| shared.first_since(timestamp, limit.min(end)))
    }

    /// The first record below `limit` that has the greatest timestamp.
    pub fn max_timestamp(&self, limit: Offset) -> Result<Option<Found>, ReadError> {
        let shared = self.shared();
        shared.look(|end| shared.latest(limit.min(end)))
    }
}

fn shared_start<D: Disk>(shared: &Shared<D>) -> Offset {
    shared.start.load(std::sync::atomic::Ordering::Acquire)
}

impl<D: Disk> Shared<D> {
    /// Looks something up in the whole log. Nobody asked for an offset, so a log whose beginning leaves meanwhile is looked at
    /// again from where it begins then.
    fn look<T>(&self, look: impl Fn(Offset) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let mut last = ReadError::Gone;
        for _ in 0..ATTEMPTS {
            match self.stable(&look, shared_start(self)) {
                Err(error @ ReadError::BelowStart { .. }) => last = error,
                other => return other,
            }
        }
        Err(last)
    }

    fn first_since(&self, timestamp: i64, limit: Offset) -> Result<Option<Found>, ReadError> {
        let start = shared_start(self);
        for (segment, next) in self.parts() {
            if next.is_some_and(|next| next <= start) {
                continue;
            }
            if segment.base() >= limit {
                break;
            }
            // Records without a timestamp (-1) are in no index, and only -1 or less looks for them.
            if timestamp >= 0 && segment.max_timestamp()?.is_none_or(|max| max.timestamp < timestamp) {
                continue;
            }
            let time_position = segment.position_for_time(timestamp)?;
            let start_position = if start > segment.base() { segment.position_for(start)? } else { 0 };
            let mut found = None;
            segment.visit(time_position.max(start_position), limit, |header, batch| {
                if header.max_timestamp < timestamp || header.last_offset() < start {
                    return Ok(true);
                }
                found = scan::first_since(&batch()?, start, timestamp)
                    .map_err(|fault| segment.unreadable(header, &fault))?;
                Ok(found.is_none())
            })?;
            if found.is_some() {
                return Ok(found.filter(|found| found.offset < limit));
            }
        }
        Ok(None)
    }

    fn latest(&self, limit: Offset) -> Result<Option<Found>, ReadError> {
        let start = shared_start(self);
        let mut best: Option<Found> = None;
        for (segment, next) in self.parts() {
            if next.is_some_and(|next| next <= start) {
                continue;
            }
            if segment.base() >= limit {
                break;
            }
            let whole = start <= segment.base() && next.is_some_and(|next| next <= limit);
            // Records without a timestamp are in no index: where there are no others, the batches are asked.
            let max = if whole { segment.max_timestamp()? } else { None };
            if let Some(max) = max {
                // The index knows whether to look at all, and where.
                if best.is_some_and(|best| best.timestamp >= max.timestamp) {
                    continue;
                }
                let position = segment.position_for_time(max.timestamp)?;
                best = segment.first_of(position, limit, start, Some(max.timestamp))?.or(best);
            } else {
                let position = if start > segment.base() { segment.position_for(start)? } else { 0 };
                let found = segment.first_of(position, limit, start, None)?;
                if let Some(found) = found
                    && best.is_none_or(|best| best.timestamp < found.timestamp)
                {
                    best = Some(found);
                }
            }
        }
        Ok(best)
    }

    /// The segments, each with the base of the next.
    fn parts(&self) -> Vec<(std::sync::Arc<Segment<D>>, Option<Offset>)> {
        let segments = self.segments.load();
        segments
            .iter()
            .enumerate()
            .map(|(at, segment)| (segment.clone(), segments.get(at + 1).map(|next| next.base())))
            .collect()
    }
}

impl<D: Disk> Segment<D> {
    /// The first record from `start` on that has the greatest timestamp of the batches from `position` on
    /// (or, where it is known, exactly `known`).
    fn first_of(
        &self,
        position: u64,
        limit: Offset,
        start: Offset,
        known: Option<i64>,
    ) -> Result<Option<Found>, ReadError> {
        let mut best: Option<Found> = None;
        self.visit(position, limit, |header, batch| {
            let worth = match (known, best) {
                (Some(known), _) => header.max_timestamp >= known,
                (None, Some(best)) => header.max_timestamp > best.timestamp,
                (None, None) => true,
            };
            if !worth || header.last_offset() < start {
                return Ok(true);
            }
            let batch = batch()?;
            let fault = |fault| self.unreadable(header, &fault);
            let found = if header.base_offset >= start {
                scan::latest(&batch).map_err(fault)?
            } else {
                latest_from(&batch, start).map_err(fault)?
            };
            if let Some(found) = found
                && best.is_none_or(|best| best.timestamp < found.timestamp)
            {
                best = Some(found);
            }
            Ok(known.is_none() || best.is_none())
        })?;
        Ok(best)
    }

    /// Calls `visit` with each batch from `position` on that lies below `limit`, until it says stop. The
    /// second argument fetches the batch's bytes.
    fn visit(
        &self,
        position: u64,
        limit: Offset,
        mut visit: impl FnMut(
            &BatchHeader,
            &mut dyn FnMut() -> Result<Batch, ReadError>,
        ) -> Result<bool, ReadError>,
    ) -> Result<(), ReadError> {
        let file = self.file().map_err(|error| self.log_error(error))?;
        let mut walk = Walk::new(&*file, position, self.size(), self.base());
        loop {
            let step = walk.next_header().map_err(|broken| self.of_walk(broken))?;
            let Some(step) = step else { return Ok(()) };
            if step.header.next_offset() > limit {
                return Ok(());
            }
            let mut fetch = || self.fetch(&mut walk, &step);
            if !visit(&step.header, &mut fetch)? {
                return Ok(());
            }
        }
    }

    fn fetch(&self, walk: &mut Walk<'_, D::File>, step: &Step) -> Result<Batch, ReadError> {
        let bytes = walk.batch_bytes(step).map_err(|broken| self.of_walk(broken))?;
        if self.verifies() {
            felix_protocol::batch::verify_crc(&step.header, &bytes)
                .map_err(|error| self.damaged(step.position, step.header.base_offset, error.to_string()))?;
        }
        Ok(Batch { header: step.header, bytes })
    }

    pub(crate) fn of_walk(&self, broken: Broken) -> ReadError {
        match broken {
            Broken::Io(error) => self.log_error(error),
            Broken::Batch { position, reason } => self.damaged(position, self.base(), reason).into(),
        }
    }

    fn unreadable(&self, header: &BatchHeader, fault: &impl std::fmt::Display) -> ReadError {
        self.damaged(0, header.base_offset, format!("records cannot be read: {fault}")).into()
    }
}

/// [`scan::latest`] of the records at or behind `start`.
fn latest_from(batch: &Batch, start: Offset) -> Result<Option<Found>, felix_protocol::batch::RecordFault> {
    let mut best: Option<Found> = None;
    let mut floor = i64::MIN;
    // Each round finds the first record beyond the best so far; it ends at the first of the greatest.
    while let Some(found) = scan::first_since(batch, start, floor)? {
        best = Some(found);
        let Some(next) = found.timestamp.checked_add(1) else { break };
        floor = next;
    }
    Ok(best)
}
