//! Control stores and the executor of the cluster machines.
