//! The in-memory twin of a disk.
