//! The look through closed segments of a log that is in use.

use super::*;
use crate::scrub::{Outcome, Progress};
use crate::seal::{self, Found};

const EVERY: i64 = 1_000;

fn sealed(disk: &MemDisk) -> Log<MemDisk> {
    let dir = without_tail(disk);
    let mut log = Log::create(&dir, partition(), small(), 0, NOW).unwrap();
    for at in 0..20 {
        append(&mut log, &batch(1, 400, at));
    }
    flush(&mut log);
    log
}

fn later(rounds: i64) -> WallTime {
    WallTime(NOW.0 + rounds * EVERY)
}

/// Everything that is due at `now`, in order.
fn scrubbed(log: &Log<MemDisk>, now: WallTime) -> Vec<(Offset, Outcome)> {
    let (reader, mut buf, mut done) = (log.reader(), Vec::new(), Vec::new());
    while let Some(mut scrub) = reader.scrub(now, EVERY) {
        loop {
            match scrub.step(&mut buf).unwrap() {
                Progress::Read(bytes) => assert!(bytes > 0),
                Progress::Done(outcome) => {
                    done.push((scrub.base(), outcome));
                    break;
                }
            }
        }
    }
    done
}

fn flip(disk: &MemDisk, path: &Path, at: usize) {
    let mut content = disk.content(path).unwrap();
    content[at] ^= 0x40;
    disk.put(path, &content).unwrap();
}

#[test]
fn closed_segments_are_looked_at_once_a_while() {
    let disk = MemDisk::new();
    let log = sealed(&disk);
    let closed = segment_bases(&log).len() - 1;
    assert!(closed > 2);
    assert_eq!(scrubbed(&log, NOW), [], "they were sealed just now");
    let all = scrubbed(&log, later(1));
    assert_eq!(all.len(), closed);
    assert!(all.iter().all(|(_, outcome)| *outcome == Outcome::Good), "{all:?}");
    assert_eq!(scrubbed(&log, later(1)), []);
    assert_eq!(scrubbed(&log, later(2)).len(), closed);
    // A clock that went back asks again rather than never.
    assert_eq!(scrubbed(&log, WallTime(NOW.0 - 1)).len(), closed);
    // A new life has looked at nothing yet.
    let row = close(log);
    let (log, _) = open(&disk, small(), row);
    assert_eq!(scrubbed(&log, later(2)).len(), closed);
}

#[test]
fn any_changed_byte_of_a_closed_segment_is_found_and_not_served() {
    let disk = MemDisk::new();
    let row = close(sealed(&disk));
    let (log, _) = open(&disk, small(), row);
    let base = segment_bases(&log)[1];
    let next = segment_bases(&log)[2];
    drop(log);
    let path = in_folder(base, Kind::Log);
    for at in 0..disk.content(&path).unwrap().len() {
        flip(&disk, &path, at);
        let (log, _) = open(&disk, small(), row);
        let (reader, found) = (log.reader(), scrubbed(&log, later(1)));
        let damaged: Vec<_> = found.iter().filter(|(_, outcome)| *outcome != Outcome::Good).collect();
        let [(at_base, Outcome::Damaged(damaged))] = damaged[..] else { panic!("byte {at}: {found:?}") };
        assert_eq!((*at_base, &damaged.segment), (base, &path));
        assert_eq!(reader.damage(), std::slice::from_ref(damaged));
        assert!((base..next).contains(&damaged.offset));
        // What stands before the place is served, what stands behind it is not, other segments are.
        let outcome = reader.read(damaged.offset, 1 << 20, Offset::MAX, true);
        assert!(matches!(outcome, Err(ReadError::Damaged(_))), "byte {at}: {outcome:?}");
        let mut from = 0;
        while from < damaged.offset {
            from = reader.read(from, 1, Offset::MAX, true).unwrap().next;
        }
        assert_eq!(ranges(&reader.read(next, 1, Offset::MAX, true).unwrap())[0].0, next);
        assert_eq!(scrubbed(&log, later(9)).len(), found.len() - 1, "told once");
        drop(reader);
        drop(log);
        flip(&disk, &path, at);
    }
}

#[test]
fn any_changed_byte_of_a_seal_is_found_and_repaired() {
    let disk = MemDisk::new();
    let log = sealed(&disk);
    let base = segment_bases(&log)[1];
    let path = in_folder(base, Kind::Seal);
    let good = disk.content(&path).unwrap();
    for at in 0..good.len() {
        flip(&disk, &path, at);
        let found = scrubbed(&log, later(i64::try_from(at).unwrap() + 1));
        assert!(found.iter().any(|(at, outcome)| *at == base && matches!(outcome, Outcome::Resealed(_))));
        assert_eq!(disk.content(&path).unwrap(), good, "byte {at}");
    }
}

#[test]
fn a_missing_seal_is_made_after_a_full_look() {
    let disk = MemDisk::new();
    let row = close(sealed(&disk));
    let (log, _) = open(&disk, small(), row);
    let bases = segment_bases(&log);
    let path = in_folder(bases[0], Kind::Seal);
    let good = disk.content(&path).unwrap();
    seal::discard(&disk, &folder(), bases[0]).unwrap();
    // A batch that is not right is never sealed.
    seal::discard(&disk, &folder(), bases[1]).unwrap();
    flip(&disk, &in_folder(bases[1], Kind::Log), 300);
    let found = scrubbed(&log, NOW);
    assert_eq!(found[0], (bases[0], Outcome::Sealed));
    assert!(matches!(&found[1], (_, Outcome::Damaged(damaged)) if damaged.position == 0));
    assert_eq!(disk.content(&path).unwrap(), good);
    assert_eq!(seal::read(&disk, &folder(), bases[1]), Found::Missing);
}

#[test]
fn a_log_that_is_cut_meanwhile_is_not_taken_for_damaged() {
    let disk = MemDisk::new();
    let mut log = sealed(&disk);
    let base = segment_bases(&log)[1];
    let reader = log.reader();
    let mut scrub = loop {
        let scrub = reader.scrub(later(1), EVERY).unwrap();
        if scrub.base() == base {
            break scrub;
        }
    };
    log.truncate(base + 1, NOW).unwrap();
    let mut buf = Vec::new();
    let outcome = loop {
        if let Progress::Done(outcome) = scrub.step(&mut buf).unwrap() {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Gone);
    assert_eq!(seal::read(&disk, &folder(), base), Found::Missing);
    assert_eq!(reader.damage(), []);
}

#[test]
fn a_log_that_lost_its_file_is_not_scrubbed_for_ever() {
    let disk = MemDisk::new();
    let log = sealed(&disk);
    let closed = segment_bases(&log).len() - 1;
    crate::disk::Disk::remove_file(&disk, &in_folder(segment_bases(&log)[0], Kind::Log)).unwrap();
    // The one that cannot be opened is passed over, and the ones behind it get their turn.
    let mut looks = 0;
    for _ in 0..=closed {
        looks += scrubbed(&log, later(1)).len();
    }
    assert_eq!(looks, closed - 1);
}
