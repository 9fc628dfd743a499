//! Assertions that return errors, so that a case's message says what was compared.

use std::fmt::Debug;

use anyhow::{Result, bail};

/// Fails unless both are equal.
pub fn equal<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<()> {
    if got == expected { Ok(()) } else { bail!("{what}: expected {expected:?}, got {got:?}") }
}

/// Fails unless `got` is among `expected`.
pub fn one_of<T: PartialEq + Debug>(what: &str, got: T, expected: &[T]) -> Result<()> {
    if expected.contains(&got) { Ok(()) } else { bail!("{what}: expected one of {expected:?}, got {got:?}") }
}

/// Fails unless it holds.
pub fn holds(what: &str, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { bail!("{what}") }
}
