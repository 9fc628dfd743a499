//! The durable side of a copy's identity: which log ids of the table may still vouch for what they promised.

use felix_protocol::ids::{LogId, PartitionId};
use felix_storage::disk::Disk;
use felix_storage::replicas::ReplicasReport;
use felix_storage::{Replica, Replicas, StorageError};

/// Whether a copy may have lost bytes that it counted in answers, mark or acknowledgements: it counted
/// unsynced ones, was not closed, and the machine has booted since. A process that died keeps its page
/// cache, so the same boot is no reason for doubt.
fn lost_unsynced(row: &Replica, same_boot: bool) -> bool {
    row.unsynced && !row.clean && !same_boot
}

/// Gives new log ids to all copies of a directory that can no longer vouch for what they promised, durably,
/// and notes this boot. Called once at start, before the session is registered. Returns who was given one.
///
/// The old id stays in the control store as a member that nobody holds any more; a leader or an operator
/// deals with that, and this broker declines to lead in its name.
pub fn settle_identities<D: Disk>(
    replicas: &Replicas<D>,
    report: &ReplicasReport,
    boot_id: u128,
) -> Result<Vec<Doubted>, StorageError> {
    let same_boot = report.boot_id == Some(boot_id) && boot_id != NO_BOOT;
    let mut doubted = Vec::new();
    for (partition, row) in replicas.all() {
        // What a damaged commit of the table said is lost; it may have been about any copy that nothing newer is
        // known of.
        let outdated = report.outdated.binary_search(&partition).is_ok();
        if outdated || lost_unsynced(&row, same_boot) {
            replicas.stage(partition, with_new_id(row));
            doubted.push(Doubted { partition, outdated });
        }
    }
    if !same_boot || !doubted.is_empty() {
        let ticket = replicas.stage_boot_id(boot_id);
        replicas.commit(ticket)?;
    }
    Ok(doubted)
}

/// The control store knows nothing of this directory's last session: it or the directory is a copy of an earlier time,
/// and what these copies have promised since is not known. All of them get new log ids, durably, before the session is
/// registered. Returns how many.
pub fn renew_identities<D: Disk>(replicas: &Replicas<D>) -> Result<usize, StorageError> {
    let rows = replicas.all();
    let count = rows.len();
    let last = rows.into_iter().map(|(partition, row)| replicas.stage(partition, with_new_id(row))).last();
    if let Some(ticket) = last {
        replicas.commit(ticket)?;
    }
    Ok(count)
}

/// A copy that got a new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubted {
    /// The partition.
    pub partition: PartitionId,
    /// The table's newest word on it was damaged; otherwise unflushed records went with the machine's power.
    pub outdated: bool,
}

/// Whether a flush of the directory failed in its last life and that was noted ([`suspect`]): [`settle_identities`] deals with the
/// copies in doubt then.
pub fn knows_of_failed_flush(report: &ReplicasReport) -> bool {
    report.boot_id == Some(NO_BOOT)
}

/// The boot of no machine: whatever counts unsynced bytes has lost them, as far as the next start can tell.
const NO_BOOT: u128 = 0;

/// A flush of the directory failed, so the kernel may have dropped bytes of any of these copies: the next start
/// gives them new identities. Best effort on a disk that fails; the process ends either way.
pub fn suspect<D: Disk>(
    replicas: &Replicas<D>,
    rows: Vec<(PartitionId, Replica)>,
) -> Result<(), StorageError> {
    for (partition, row) in rows {
        replicas.stage(partition, Replica { unsynced: true, clean: false, ..row });
    }
    replicas.commit(replicas.stage_boot_id(NO_BOOT))
}

/// The row of the same bytes under a new identity. The fence stays; what the old one had confirmed does not
/// count for the new one.
pub(crate) fn with_new_id(row: Replica) -> Replica {
    Replica { log_id: LogId::random(), mark: row.log_start, clean: false, unsynced: false, ..row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::Generation;

    #[test]
    fn only_a_lost_page_cache_is_doubt() {
        let row = Replica {
            log_id: LogId::random(),
            accepted: Generation::ZERO,
            mark: 9,
            mark_generation: Generation::ZERO,
            log_start: 2,
            synced: 9,
            clean: false,
            unsynced: true,
            diverged: true,
        };
        assert!(lost_unsynced(&row, false));
        assert!(!lost_unsynced(&row, true), "a process crash keeps the page cache");
        assert!(!lost_unsynced(&Replica { clean: true, ..row }, false));
        assert!(!lost_unsynced(&Replica { unsynced: false, ..row }, false), "it counted flushed bytes only");
        let renewed = with_new_id(row);
        assert_ne!(renewed.log_id, row.log_id);
        assert_eq!((renewed.mark, renewed.accepted), (2, Generation::ZERO));
        assert!(renewed.diverged, "another name makes no other bytes");
    }
}
