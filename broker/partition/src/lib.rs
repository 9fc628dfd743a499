//! A copy: one log, its machine, admission, and the executor of its actions.

pub mod append;
pub mod published;
