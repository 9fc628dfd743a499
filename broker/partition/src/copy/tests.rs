//! Stories of one copy on a disk in memory.
