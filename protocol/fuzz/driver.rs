//! Runs a fuzz target as a plain test: over its corpus, and over mutations of it that a fixed seed chooses, so
//! that two runs do the same. Every package's `tests/fuzz.rs` takes this file in.
//!
//! A target is a function of bytes that asserts what must hold. The same function is what the cargo-fuzz target
//! of the same name calls (`fuzz/fuzz_targets/`), so the two cannot drift. What a long fuzzing run finds becomes a file in the
//! corpus; `FELIX_FUZZ_ROUNDS` makes this run longer, `FELIX_BLESS=1` writes the seeds into the corpus anew.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One target at a time: what is allocated is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// What one input may be: beyond it, inputs tell nothing new and cost time.
const MOST_BYTES: usize = 16 << 10;

/// One target.
pub struct Target {
    /// Its name: the folder of its corpus, and the cargo-fuzz target.
    pub name: &'static str,
    /// What must hold for any bytes.
    pub check: fn(&[u8]),
    /// Mutations tried in the normal run.
    pub rounds: usize,
    /// Bytes that the check may allocate altogether (what it frees counts too), whatever the input.
    pub fixed_bytes: usize,
    /// The same for each byte of input.
    pub bytes_per_byte: usize,
}

/// Begins the name of a seed that is not written into the corpus.
pub const NOT_KEPT: &str = "recorded ";

/// A named input.
pub type Input = (String, Vec<u8>);

/// Runs `target` over `fuzz/corpus/<name>` of the package in the folder `package`, over `seeds`, and over mutations
/// of both. `allocated` tells all bytes ever allocated by this process.
pub fn run(package: &str, target: &Target, seeds: fn() -> Vec<Input>, allocated: impl Fn() -> usize) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seeds = seeds();
    let folder = Path::new(package).join("fuzz/corpus").join(target.name);
    if std::env::var_os("FELIX_BLESS").is_some() {
        std::fs::create_dir_all(&folder).expect("the corpus can be written");
        for (name, bytes) in seeds.iter().filter(|(name, _)| !name.starts_with(NOT_KEPT)) {
            std::fs::write(folder.join(format!("seed-{name}")), bytes).expect("the corpus can be written");
        }
    }
    let mut inputs = read_corpus(&folder);
    inputs.extend(seeds);
    assert!(!inputs.is_empty(), "{} has nothing to begin with", target.name);
    for (name, bytes) in &inputs {
        one(target, name, bytes, &allocated);
    }
    let rounds = std::env::var("FELIX_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut dice = Dice(0x0f31_1e0d ^ target.name.len() as u64);
    for round in 0..rounds.unwrap_or(target.rounds) {
        let (name, bytes) = &inputs[dice.below(inputs.len())];
        let other = &inputs[dice.below(inputs.len())].1;
        let mutated = mutate(bytes, other, &mut dice);
        one(target, &format!("{name}, mutated in round {round}"), &mutated, &allocated);
    }
}

fn read_corpus(folder: &Path) -> Vec<Input> {
    let mut paths: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.expect("the corpus can be listed").path()).collect(),
        Err(_) => Vec::new(),
    };
    paths.sort();
    let named = |path: PathBuf| {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        (name, std::fs::read(&path).expect("the corpus can be read"))
    };
    paths.into_iter().map(named).collect()
}

fn one(target: &Target, name: &str, bytes: &[u8], allocated: &impl Fn() -> usize) {
    let before = allocated();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.check)(bytes)));
    let taken = allocated() - before;
    let bound = target.fixed_bytes + target.bytes_per_byte * bytes.len();
    if outcome.is_ok() && taken <= bound {
        return;
    }
    let path = std::env::temp_dir().join(format!("felix-fuzz-{}-{:08x}", target.name, fold(bytes)));
    let kept = std::fs::write(&path, bytes).map(|()| path.display().to_string());
    panic!(
        "target {} fails on {name} ({} bytes, kept as {kept:?}); {taken} bytes allocated, {bound} allowed",
        target.name,
        bytes.len()
    );
}

/// A name for an input.
fn fold(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Numbers that stand at the edges of types and of what formats allow.
const EDGES: [i64; 16] = [
    0,
    1,
    -1,
    -2,
    2,
    61,
    255,
    32_767,
    -32_768,
    65_536,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 32,
    i64::MAX,
    i64::MIN,
    i64::MAX - i32::MAX as i64,
];

/// A few small changes to `bytes`.
fn mutate(bytes: &[u8], other: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        let behind = bytes.len() - at;
        match dice.below(9) {
            0 if behind > 0 => bytes[at] ^= 1 << dice.below(8),
            1 if behind > 0 => bytes[at] = dice.next().to_be_bytes()[0],
            2 | 3 => {
                let edge = EDGES[dice.below(EDGES.len())].to_be_bytes();
                let width = (1 << dice.below(4)).min(behind);
                bytes[at..at + width].copy_from_slice(&edge[8 - width..]);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..at + dice.below(behind.min(64) + 1))),
            6 => {
                let more: Vec<u8> = (0..dice.below(16)).map(|_| dice.next().to_be_bytes()[0]).collect();
                bytes.splice(at..at, more);
            }
            7 => {
                // A part again, as when a count is raised by one.
                let part = bytes[at..at + dice.below(behind.min(256) + 1)].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let from = dice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes.truncate(MOST_BYTES);
    bytes
}

/// SplitMix64: the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`, which must not be 0.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("it is below a usize")
    }
}
