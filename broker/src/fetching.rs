//! What Fetch needs beyond one partition: sessions that remember what a consumer reads, and long polls.

pub mod read;
pub mod readers;
pub mod session;
