//! One partition's log on disk.
