//! One partition's leader and follower as state machines, pure.
