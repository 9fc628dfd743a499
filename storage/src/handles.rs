//! Open files, bounded over all logs: cold files are closed and opened again when they are needed.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::disk::{Disk, OpenMode};

/// A file that may be open.
pub(crate) struct Slot<F> {
    file: ArcSwapOption<F>,
    /// Used since the hand of the clock passed last.
    used: AtomicBool,
}

/// The files that are open and may be closed.
pub(crate) struct Handles<D: Disk> {
    limit: usize,
    /// Files held open beside, because they have bytes that are not flushed.
    held: AtomicUsize,
    /// A clock: files in the order in which they were opened or spared.
    clock: Mutex<VecDeque<Weak<Slot<D::File>>>>,
}

impl<F> Slot<F> {
    pub(crate) fn new() -> Arc<Slot<F>> {
        Arc::new(Slot { file: ArcSwapOption::empty(), used: AtomicBool::new(false) })
    }

    /// The file, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<F>> {
        let file = self.file.load_full()?;
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        Some(file)
    }

    /// Closes it (for those who do not hold it already).
    pub(crate) fn close(&self) {
        self.file.store(None);
    }
}

impl<D: Disk> Handles<D> {
    pub(crate) fn new(limit: usize) -> Handles<D> {
        Handles { limit: limit.max(8), held: AtomicUsize::new(0), clock: Mutex::new(VecDeque::new()) }
    }

    /// Whether one more dirty file may be held open.
    pub(crate) fn hold(&self) -> bool {
        let held = self.held.fetch_add(1, Ordering::Relaxed);
        if held >= self.limit {
            self.release();
        }
        held < self.limit
    }

    /// A dirty file is held no longer.
    pub(crate) fn release(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// The slot's file, opened when it is not.
    pub(crate) fn get(
        &self,
        slot: &Arc<Slot<D::File>>,
        disk: &D,
        path: &Path,
        mode: OpenMode,
    ) -> io::Result<Arc<D::File>> {
        if let Some(file) = slot.opened() {
            return Ok(file);
        }
        let file = Arc::new(disk.open(path, mode)?);
        self.put(slot, file.clone());
        Ok(file)
    }

    /// Fills a slot with a file that was opened elsewhere.
    pub(crate) fn put(&self, slot: &Arc<Slot<D::File>>, file: Arc<D::File>) {
        slot.file.store(Some(file));
        slot.used.store(true, Ordering::Relaxed);
        let mut clock = self.clock.lock();
        clock.push_back(Arc::downgrade(slot));
        // Each slot is spared once, so two rounds suffice.
        for _ in 0..2 * clock.len() {
            if clock.len() <= self.limit {
                break;
            }
            let Some(oldest) = clock.pop_front() else { break };
            let Some(slot) = oldest.upgrade() else { continue };
            if slot.used.swap(false, Ordering::Relaxed) {
                clock.push_back(oldest);
            } else {
                slot.close();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::mem::MemDisk;

    #[test]
    fn few_files_stay_open_however_many_are_used() {
        let disk = MemDisk::new();
        let handles: Handles<MemDisk> = Handles::new(10);
        let slots: Vec<_> = (0..100).map(|_| Slot::new()).collect();
        for round in 0..3 {
            for (at, slot) in slots.iter().enumerate() {
                let path = format!("/{at}");
                handles.get(slot, &disk, Path::new(&path), OpenMode::Create).unwrap();
                assert!(disk.counters().open_now <= 10, "round {round}");
            }
        }
        drop(slots);
        assert_eq!(disk.counters().open_now, 0);
    }
}
