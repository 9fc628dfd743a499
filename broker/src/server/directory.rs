//! What a start finds of the files that the whole data directory shares.

use anyhow::Result;
use felix_partition::fence::Doubted;
use felix_storage::data_dir::Identity;
use felix_storage::disk::os::OsDisk;
use felix_storage::replicas::ReplicasReport;
use felix_storage::{DataDir, StorageError};

/// Whose directory it is; `None` for a fresh one. A file that says nothing is written anew from what the control
/// store says, so that losing it keeps nobody out.
pub(super) fn identity(dir: &DataDir<OsDisk>) -> Result<Option<Identity>> {
    match dir.identity() {
        Err(StorageError::Identity { path, reason }) => {
            let path = path.display();
            tracing::warn!(%path, reason, "the directory's name cannot be read; it gets one anew");
            Ok(None)
        }
        identity => Ok(identity?),
    }
}

/// Has damage told where it is found, once a place.
pub(super) fn tell_of_damage(dir: &DataDir<OsDisk>) {
    dir.damage().listen(|damaged| {
        tracing::error!(
            file = %damaged.segment.display(), position = damaged.position, offset = damaged.offset,
            reason = damaged.reason,
            "a log is damaged: reads of these records fail, nothing was cut and everything else is served; check the \
             disk, and put the file back from a copy while the broker is stopped"
        );
    });
}

/// What keeps the data directory from being whole, if anything does.
pub(super) fn damage(dir: &DataDir<OsDisk>) -> Option<String> {
    let found = dir.damage().all();
    let first = found.first()?;
    Some(format!("{} places in logs are damaged, the first: {first}", found.len()))
}

/// What the table of copies had to say about itself.
pub(super) fn tell_of_table(report: &ReplicasReport, doubted: &[Doubted]) {
    if let Some(why) = report.lost {
        tracing::error!(
            why,
            "the table of copies (replicas.table) is lost: copies that have acknowledged records get new identities, \
             and records that were deleted may come back"
        );
    }
    let (outdated, unflushed): (Vec<Doubted>, Vec<Doubted>) =
        doubted.iter().copied().partition(|doubted| doubted.outdated);
    if report.damaged > 0 {
        tracing::error!(
            damaged = report.damaged,
            copies = outdated.len(),
            "the table of copies (replicas.table) was damaged: copies whose newest state it lost get new identities"
        );
    }
    if !unflushed.is_empty() {
        tracing::warn!(copies = unflushed.len(), "copies lost unflushed records with the machine's power");
    }
}
