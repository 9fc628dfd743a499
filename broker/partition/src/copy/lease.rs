//! What a copy that leads does about its session's lease, beside asking it at each write.

use std::time::Duration;

use felix_protocol::time::{Clock, MonoTime};
use felix_replication::event::Event;
use felix_replication::lease::Lease;
use felix_storage::disk::Disk;

use crate::actions::Ports;
use crate::copy::Copy;

/// For so long after its lease has ended, answers of followers that are on their way may still release writers by the mark. Less than a
/// tenth of the shortest lease twice (what the holder gives away, and the margin), so that they are told before anybody else leads.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(50);

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// The lease of the session that leads, or led.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// When those who wait now are told that this is not the leader, unless the lease is renewed; never, while nobody waits.
    pub(super) fn last_words_until(&self) -> MonoTime {
        if self.pending.is_empty() { MonoTime::NEVER } else { self.lease.ends_at().after(LAST_WORDS) }
    }

    /// A leader that hears nothing but is heard does not know what its followers hold. A writer that was left waiting would learn of
    /// the next leader, send that what it wrote since, and only then try again what came first: by then more than the last five
    /// batches ago, which nobody can tell from a gap.
    pub(super) fn tell_if_lease_is_over(&mut self, ports: &mut impl Ports<Writer = W>) {
        if self.last_words_until() <= self.clock.now() {
            self.step(|_| Some(Event::LeaseOver), ports);
        }
    }
}
