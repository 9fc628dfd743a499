//! Looks through closed segments in small steps, while they are read and the log is written: is every byte
//! still what was written?
//!
//! A step reads a piece of bounded size; how often steps are taken, whoever takes them decides. What was not
//! in memory before does not stay there for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use crate::check::{Checker, Fault, Verdict};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::Damaged;
use crate::layout::Kind;
use crate::log::LogReader;
use crate::seal::{self, Found};
use crate::segment::Segment;

/// Bytes that one step reads at most.
pub const STEP: usize = 256 << 10;

/// One segment that is being looked through.
pub struct Scrub<D: Disk> {
    looked: Looked<D>,
    file: D::File,
    size: u64,
    checker: Checker,
}

/// Which segment, and of which log.
struct Looked<D: Disk> {
    reader: LogReader<D>,
    segment: Arc<Segment<D>>,
    /// How often the log had been cut when this began.
    cuts: u64,
}

/// What a step did.
#[derive(Debug)]
pub enum Progress {
    /// So many bytes were read, and more are left.
    Read(usize),
    /// That was the last step.
    Done(Outcome),
}

/// What a look through a segment came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is as it was sealed.
    Good,
    /// It had no seal, every batch is right, and now it has one.
    Sealed,
    /// Its seal was bad, for the reason given; every batch is right, and the seal was made anew.
    Resealed(String),
    /// It is damaged. From now on, readers of what is behind the place are told so.
    Damaged(Damaged),
    /// It was cut, replaced, retired or deleted meanwhile.
    Gone,
}

impl<D: Disk> LogReader<D> {
    /// Begins with the first closed segment whose last look lies `every_ms` or more back. One that was closed
    /// and sealed in this process's life counts as looked at then; one without a seal never was.
    pub fn scrub(&self, now: WallTime, every_ms: i64) -> Option<Scrub<D>> {
        let shared = self.shared();
        let cuts = shared.cuts.load(Ordering::Acquire);
        let segments = shared.segments.load_full();
        let pair = segments.windows(2).find(|pair| pair[0].is_unchecked(now, every_ms))?;
        let (segment, until) = (pair[0].clone(), pair[1].base());
        segment.set_checked(now);
        // Its own handle: what is advised about it is for nobody else.
        let opened = shared.home.dir.disk().open(&segment.path(Kind::Log), OpenMode::Read);
        let looked = Looked { reader: self.clone(), segment, cuts };
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    let (position, offset) = (0, looked.segment.base());
                    looked.damaged(Fault { position, offset, reason: "the file is gone".to_string() });
                }
                return None;
            }
        };
        let size = looked.segment.size();
        let checker = Checker::new(looked.segment.base(), Some(until));
        Some(Scrub { looked, file, size, checker })
    }

    /// The segments that are known to be damaged.
    pub fn damage(&self) -> Vec<Damaged> {
        self.shared().segments.load().iter().filter_map(|segment| segment.damage().cloned()).collect()
    }
}

impl<D: Disk> Scrub<D> {
    /// The segment's first offset.
    pub fn base(&self) -> Offset {
        self.looked.segment.base()
    }

    /// Ends the look before its end: the segment is due again at once.
    pub fn give_up(self) {
        self.looked.segment.set_unchecked();
    }

    /// Reads the next piece.
    pub fn step(&mut self, buf: &mut Vec<u8>) -> io::Result<Progress> {
        buf.clear();
        let left = self.size.saturating_sub(self.checker.size());
        let want = usize::try_from(left).unwrap_or(STEP).min(STEP);
        let got = if want == 0 { 0 } else { self.file.read_once_at(buf, want, self.checker.size())? };
        if got > 0 {
            let fed = self.checker.feed(buf, &mut |_, _| {});
            return Ok(match fed {
                Ok(()) => Progress::Read(got),
                Err(fault) => Progress::Done(self.looked.damaged(fault)),
            });
        }
        if want > 0 {
            let (position, offset) = (self.checker.size(), self.checker.next());
            let reason = format!("the file ends there, {left} bytes early");
            return Ok(Progress::Done(self.looked.damaged(Fault { position, offset, reason })));
        }
        // The file may be longer than what readers know of; then something was appended behind its end.
        if self.file.len()? > self.size {
            let (position, offset) = (self.size, self.checker.next());
            let reason = "bytes stand behind the segment's end".to_string();
            return Ok(Progress::Done(self.looked.damaged(Fault { position, offset, reason })));
        }
        self.conclude().map(Progress::Done)
    }

    fn conclude(&self) -> io::Result<Outcome> {
        let Looked { reader, segment, .. } = &self.looked;
        let home = &reader.shared().home;
        // Held against a cut, which takes the seal away.
        let replaced = segment.hold_seal();
        let found = seal::read(home.dir.disk(), &home.folder, segment.base());
        if *replaced || !self.looked.is_current() {
            return Ok(Outcome::Gone);
        }
        let outcome = match self.checker.judge(&found) {
            Verdict::Sealed => return Ok(Outcome::Good),
            Verdict::Damaged(fault) => return Ok(self.looked.damaged(fault)),
            Verdict::Unsealed => Outcome::Sealed,
            Verdict::BadSeal(why) => Outcome::Resealed(why),
        };
        let gaps = matches!(found, Found::Seal(seal) if seal.gaps);
        let content = self.checker.sealed(gaps).encode();
        seal::write(home.dir.disk(), &home.folder, &content, segment.base())?;
        Ok(outcome)
    }
}

impl<D: Disk> Looked<D> {
    /// Whether the segment is still the log's, and as long as it was.
    fn is_current(&self) -> bool {
        let shared = self.reader.shared();
        !shared.gone.load(Ordering::Acquire)
            && !self.segment.is_replaced()
            && shared.cuts.load(Ordering::Acquire) == self.cuts
            && shared.segments.load().iter().any(|segment| Arc::ptr_eq(segment, &self.segment))
    }

    fn damaged(&self, fault: Fault) -> Outcome {
        if !self.is_current() {
            return Outcome::Gone;
        }
        let damaged = self.segment.damaged(fault.position, fault.offset, fault.reason);
        self.segment.condemn(damaged.clone());
        let home = &self.reader.shared().home;
        home.dir.damage().meet(home.partition, &damaged);
        Outcome::Damaged(damaged)
    }
}
