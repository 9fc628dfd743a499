//! Opening a log of which the table of copies knows nothing, although its folder is there.
//!
//! What the table said is gone: up to where the log was flushed, its mark, its log start. So nothing is taken for
//! less than it may be: segments that were closed were flushed then, whatever is whole in the last one is kept, and
//! damage that readable batches follow is never cut. Deleted records may come back, as far as their segments are
//! still there.

use std::io;

use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;

use super::super::{LoadReport, Log, Recovered, home};
use super::{Listing, list};
use crate::config::LogConfig;
use crate::data_dir::{DataDir, SIDE_FILE_LIMIT};
use crate::disk::{self, Disk};
use crate::error::StorageError;
use crate::layout;
use crate::segment::Home;

impl<D: Disk> Log<D> {
    /// See the module. `None` when there is no folder, or no segment in it. The caller gives the copy a new log id:
    /// part of what it acknowledged may be missing.
    pub fn open_unknown(
        dir: &DataDir<D>,
        partition: PartitionId,
        config: LogConfig,
        now: WallTime,
    ) -> Result<Option<(Log<D>, LoadReport)>, StorageError> {
        let home = home(dir, partition, &config);
        let listing = match list(&home) {
            Ok(listing) => listing,
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (Some(first), Some(last)) = (listing.segments.first(), listing.segments.last()) else {
            return Ok(None);
        };
        let log_start = start_by_map(&home, &listing).unwrap_or(*first);
        let recovered =
            Recovered { clean: false, mark: log_start, log_start, synced: *last, ..Recovered::default() };
        Log::open(dir, partition, config, recovered, now).map(Some)
    }
}

/// The log start as the generation map remembers it, if it lies within the first segment: a map that lies must not
/// hide more than that.
fn start_by_map<D: Disk>(home: &Home<D>, listing: &Listing) -> Option<Offset> {
    let path = home.folder.join(layout::EPOCH_CHECKPOINT);
    let content = disk::read_whole(home.dir.disk(), &path, SIDE_FILE_LIMIT).ok()?;
    let map = layout::parse_epoch_checkpoint(&String::from_utf8_lossy(&content))?;
    let (_, start) = map.entries().first().copied()?;
    let (first, second) = (listing.segments.first()?, listing.segments.get(1)?);
    (*first <= start && start <= *second).then_some(start)
}
