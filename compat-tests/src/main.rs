//! Real clients against the real binary.

fn main() {}
