//! Cluster state and every control decision, pure.
