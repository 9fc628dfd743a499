//! Groups and transactions as state machines, pure.
