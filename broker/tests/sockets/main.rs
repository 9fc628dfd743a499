//! The real binary, asked by raw sockets.

mod broker;
mod connections;
mod start;
