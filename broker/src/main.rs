//! The `felix` binary.

fn main() {}
