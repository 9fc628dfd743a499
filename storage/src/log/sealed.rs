//! Reading closed segments by their seals, for whoever copies a log from end to end: large pieces, each compared with what was sealed
//! before any of it is given away. No batch is looked at for that, and the 21 bytes that a batch's own checksum leaves out are
//! compared, too.
//!
//! A piece that differs is no answer: the segment is looked through as the scrub does, and what that finds is damage, told at the one
//! door. Where there is no seal to compare with, or the segment is still written, a log is read by [`LogReader::read`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::Offset;

use super::{LogReader, Read, Shared};
use crate::check::{self, Checker, Verdict};
use crate::disk::{self, Disk};
use crate::error::ReadError;
use crate::seal::Found;
use crate::seal::marks::{Sealed, Span};
use crate::segment::Segment;

impl<D: Disk> LogReader<D> {
    /// As [`LogReader::read`] with at least one batch, of a closed segment whose seal covers what is read. Up to half a MiB more than
    /// that is in memory for it. `None`: no such segment is there; then `read` has the answer.
    pub fn read_sealed(
        &self,
        from: Offset,
        max_bytes: usize,
        limit: Offset,
    ) -> Result<Option<Read>, ReadError> {
        self.shared().stable(|end| self.shared().read_sealed(from, max_bytes, limit.min(end)), from)
    }
}

impl<D: Disk> Shared<D> {
    fn read_sealed(&self, from: Offset, max_bytes: usize, limit: Offset) -> Result<Option<Read>, ReadError> {
        let cuts = self.cuts.load(Ordering::Acquire);
        let segments = self.segments.load();
        let at = segments.partition_point(|segment| segment.base() <= from).saturating_sub(1);
        let [segment, next, ..] = &segments[at..] else { return Ok(None) };
        let Some(sealed) = segment.sealed() else { return Ok(None) };
        let Some(span) = sealed.span(from, max_bytes, limit) else { return Ok(None) };
        // Where not all of it is right, the beginning may be.
        for span in
            [Some(span), sealed.span(from, 0, limit).filter(|first| *first != span)].into_iter().flatten()
        {
            let fetched = || {
                let file = segment.file()?;
                disk::read_up_to(&*file, span.bytes(), span.from.position)
            };
            let bytes = fetched().map_err(|error| segment.log_error(error))?;
            if span.is_right(&bytes) {
                if span.is_last {
                    segment.forget_seal();
                }
                return Ok(cut_out(bytes, &span, from, max_bytes));
            }
        }
        self.differs(segment, next.base(), &sealed, cuts)
    }

    /// Bytes are not what was sealed. None of them are given away batch by batch either: a batch in front of the place that is told may
    /// be the one that changed.
    fn differs(
        &self,
        segment: &Arc<Segment<D>>,
        until: Offset,
        sealed: &Sealed,
        cuts: u64,
    ) -> Result<Option<Read>, ReadError> {
        if let Some(damage) = segment.damage() {
            return Err(damage.clone().into());
        }
        let mut checker = Checker::new(segment.base(), Some(until));
        let looked: io::Result<_> = check::run(segment, &mut checker);
        let verdict = match looked.map_err(|error| segment.log_error(error))? {
            Ok(()) => checker.judge(&Found::Seal(sealed.seal)),
            Err(fault) => Verdict::Damaged(fault),
        };
        let is_current = self.cuts.load(Ordering::Acquire) == cuts
            && !segment.is_replaced()
            && self.segments.load().iter().any(|listed| Arc::ptr_eq(listed, segment));
        match verdict {
            Verdict::Damaged(fault) if is_current => {
                let damaged = segment.damaged(fault.position, fault.offset, fault.reason);
                segment.condemn(damaged.clone());
                Err(damaged.into())
            }
            // The whole is right: then its marks are not.
            Verdict::Sealed | Verdict::Unsealed | Verdict::BadSeal(_) | Verdict::Damaged(_) => {
                segment.distrust_seal();
                Ok(None)
            }
        }
    }
}

/// Of a piece that is right: from the batch on that contains `from`, or else the first behind it, whole batches of so many bytes, at
/// least one.
fn cut_out(bytes: Vec<u8>, span: &Span, from: Offset, max_bytes: usize) -> Option<Read> {
    let header_at = |at: usize| bytes.get(at..).and_then(|bytes| BatchHeader::parse(bytes).ok());
    let (mut begin, mut end, mut next) = (0, bytes.len(), span.to.next);
    if span.from.next < from {
        let mut header = header_at(begin)?;
        while header.last_offset() < from {
            begin += header.bytes;
            header = header_at(begin)?;
        }
    }
    if end - begin > max_bytes {
        let mut header = header_at(begin)?;
        (end, next) = (begin, span.from.next);
        while end == begin || end - begin + header.bytes <= max_bytes {
            (end, next) = (end + header.bytes, header.next_offset());
            let Some(following) = header_at(end) else { break };
            header = following;
        }
    }
    let held = bytes.capacity();
    let slice = Bytes::from(bytes).slice(begin..end);
    Some(Read { bytes: slice.len(), slices: vec![slice], held, next })
}
