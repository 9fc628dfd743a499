//! A leader whose disk refuses writes, because it is full or for another reason.

use std::time::Duration;

use felix_protocol::time::Clock;
use felix_replication::leader::Leader;
use felix_storage::disk::Disk;

use crate::actions::Ports;
use crate::copy::Copy;

/// A leader that handed over because its disk was full, and leads again, does not do so for as long.
const GIVE_WAY_REST: Duration = Duration::from_secs(10);

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// Tells that the disk refuses writes; not of each of them.
    pub(super) fn tell_of_disk(&mut self, why: &str, ports: &mut impl Ports<Writer = W>) {
        let now = self.clock.now();
        if self.told_of_disk_at.is_none_or(|at| now >= at.after(GIVE_WAY_REST)) {
            self.told_of_disk_at = Some(now);
            ports.failed(self.id, why);
        }
    }

    /// The disk is full, or fails: hands the tenure over to a follower that has everything, if there is one. Should that one's disk refuse,
    /// too, the two do not pass the partition to and fro with every write.
    pub(super) fn give_way(&mut self, why: &str, ports: &mut impl Ports<Writer = W>) {
        let now = self.clock.now();
        let rests = self.gave_way_at.is_some_and(|at| now < at.after(GIVE_WAY_REST));
        if rests || !self.leader.as_ref().is_some_and(Leader::has_heir) {
            return;
        }
        self.gave_way_at = Some(now);
        ports.gave_way(self.id, self.published.generation(), why);
        self.leave(now, false, ports);
    }
}
