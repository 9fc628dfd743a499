//! The seal of a segment that is read from end to end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Segment;
use crate::disk::Disk;
use crate::seal::marks::Sealed;

impl<D: Disk> Segment<D> {
    /// Its seal, if it is one of all its bytes. Kept until [`Segment::forget_seal`].
    pub(crate) fn sealed(&self) -> Option<Arc<Sealed>> {
        if self.unsealable.load(Ordering::Relaxed) {
            return None;
        }
        let of_all = |sealed: &Arc<Sealed>| sealed.seal.size == self.size();
        if let Some(sealed) = self.sealed.load_full() {
            return Some(sealed).filter(of_all);
        }
        // What stands there once other bytes take its place is theirs.
        let replaced = self.hold_seal();
        if *replaced {
            return None;
        }
        let sealed = Sealed::read(self.disk(), &self.home.folder, self.base).map(Arc::new);
        let sealed = sealed.filter(of_all);
        self.sealed.store(sealed.clone());
        sealed
    }

    /// Nobody reads by it just now.
    pub(crate) fn forget_seal(&self) {
        self.sealed.store(None);
    }

    /// It is not read by its seal in this process's life any more.
    pub(crate) fn distrust_seal(&self) {
        self.unsealable.store(true, Ordering::Relaxed);
        self.forget_seal();
    }
}
