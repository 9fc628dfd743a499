//! A copy: one log, its machine, admission, and the executor of its actions.
