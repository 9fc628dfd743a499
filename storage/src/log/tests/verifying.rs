//! `felix verify` over what logs leave behind.

use felix_protocol::batch::control::TransactionEnd;
use felix_protocol::ids::LogId;
use proptest::prelude::*;

use super::aborted::{in_transaction, marker};
use super::*;
use crate::disk::Disk;
use crate::seal::{self, Found};
use crate::verify::{Finding, Weight, compare, verify};
use crate::{Replica, Replicas};

fn row(recovered: &Recovered) -> Replica {
    Replica {
        log_id: LogId::random(),
        accepted: generation(3),
        mark: recovered.mark,
        mark_generation: generation(3),
        log_start: recovered.log_start,
        synced: recovered.synced,
        clean: recovered.clean,
        unsynced: false,
        diverged: false,
    }
}

fn note(disk: &MemDisk, row: Replica) {
    let (replicas, _) = Replicas::open(&data_dir(disk)).unwrap();
    let ticket = replicas.stage(partition(), row);
    replicas.commit(ticket).unwrap();
}

/// A directory with a log of several segments, generations and producers, stopped properly.
fn stopped_directory() -> (MemDisk, Vec<Offset>) {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    for at in 0..30 {
        let number = u32::try_from(1 + at / 12).unwrap();
        log.append(&numbered(i64::from(at % 3), 0, at / 3 * 5, 5), generation(number), NOW).unwrap();
        log.append(&batch(1, 100, i64::from(at) * 7 % 13), generation(number), NOW).unwrap();
    }
    let bases = segment_bases(&log);
    let recovered = close(log);
    note(&disk, row(&recovered));
    (disk, bases)
}

fn findings(disk: &MemDisk) -> Vec<Finding> {
    let mut found = Vec::new();
    let summary = verify(disk, Path::new("/data"), &mut |finding| found.push(finding.clone())).unwrap();
    assert_eq!(summary.findings.iter().sum::<u64>(), found.len() as u64);
    found
}

/// Findings that are more than a note.
fn bad(disk: &MemDisk) -> Vec<Finding> {
    findings(disk).into_iter().filter(|finding| finding.weight > Weight::Note).collect()
}

#[test]
fn a_directory_that_was_stopped_properly_is_good() {
    let (disk, bases) = stopped_directory();
    assert!(bases.len() > 2);
    let mut found = Vec::new();
    let summary = verify(&disk, Path::new("/data"), &mut |finding| found.push(finding.clone())).unwrap();
    // The test never gave the directory an identity.
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].path.ends_with(layout::META_PROPERTIES));
    assert!(summary.is_good());
    assert_eq!((summary.partitions, summary.segments, summary.batches), (1, bases.len() as u64, 60));
}

#[test]
fn any_changed_byte_of_any_segment_is_named() {
    let (disk, bases) = stopped_directory();
    for base in &bases[..2] {
        let path = in_folder(*base, Kind::Log);
        let content = disk.content(&path).unwrap();
        for at in 0..content.len() {
            let mut changed = content.clone();
            changed[at] ^= 1 << (at % 8);
            disk.put(&path, &changed).unwrap();
            let found = bad(&disk);
            let named = found.iter().any(|finding| {
                finding.weight == Weight::Damage
                    && finding.path == path
                    // Where things stop fitting together: in the batch, or at the one behind it.
                    && finding.position.is_some_and(|position| position <= at as u64 + 200)
            });
            assert!(named, "byte {at}: {found:?}");
        }
        disk.put(&path, &content).unwrap();
    }
    assert_eq!(bad(&disk), []);
}

#[test]
fn any_changed_byte_of_a_side_file_is_wrong_and_nothing_else() {
    let (disk, _) = stopped_directory();
    let mut kinds = std::collections::BTreeSet::new();
    for entry in disk.read_dir(&folder()).unwrap() {
        let path = folder().join(&entry.name);
        let content = disk.content(&path).unwrap();
        let kind = layout::parse_file_name(&entry.name).map(|(_, kind)| kind);
        if kind == Some(Kind::Log) {
            continue;
        }
        for at in 0..content.len() {
            let mut changed = content.clone();
            changed[at] ^= 0x11;
            disk.put(&path, &changed).unwrap();
            let found = bad(&disk);
            let line = || format!("{} byte {at}: {found:?}", entry.name);
            assert!(found.iter().all(|finding| finding.weight == Weight::Wrong), "{}", line());
            // Spaces and the like may change in the text files without changing what they say.
            let text = entry.name == layout::PARTITION_METADATA || entry.name == layout::EPOCH_CHECKPOINT;
            assert!(text || found.iter().any(|finding| finding.path == path), "{}", line());
        }
        kinds.extend(kind);
        disk.put(&path, &content).unwrap();
    }
    assert!(
        [Kind::Index, Kind::TimeIndex, Kind::Snapshot, Kind::Seal].iter().all(|kind| kinds.contains(kind))
    );
}

#[test]
fn the_map_is_held_against_the_log() {
    let (disk, _) = stopped_directory();
    let path = folder().join(layout::EPOCH_CHECKPOINT);
    let text = String::from_utf8(disk.content(&path).unwrap()).unwrap();
    let first = text.lines().nth(3).unwrap().to_string();
    let (generation, offset) = first.split_once(' ').unwrap();
    let later = format!("{generation} {}", offset.parse::<i64>().unwrap() + 1);
    disk.put(&path, text.replace(&first, &later).as_bytes()).unwrap();
    let found = bad(&disk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].weight, &found[0].path), (Weight::Wrong, &path));
}

#[test]
fn a_missing_segment_a_short_log_and_a_missing_folder_are_damage() {
    let (disk, bases) = stopped_directory();
    let damaged = |disk: &MemDisk| bad(disk).iter().any(|finding| finding.weight == Weight::Damage);
    for gone in &bases {
        let after = disk.crash(Crash::KeepAll);
        after.remove_file(&in_folder(*gone, Kind::Log)).unwrap();
        assert!(damaged(&after), "without {gone}");
        // Without seals, too.
        for base in &bases {
            seal::discard(&after, &folder(), *base).unwrap();
        }
        assert!(damaged(&after), "without {gone} and without seals");
    }
    let last = in_folder(*bases.last().unwrap(), Kind::Log);
    let content = disk.content(&last).unwrap();
    let after = disk.crash(Crash::KeepAll);
    after.put(&last, &content[..content.len() - 1]).unwrap();
    assert!(damaged(&after));
    let after = disk.crash(Crash::KeepAll);
    after.remove_dir_all(&folder()).unwrap();
    assert!(damaged(&after));
}

#[test]
fn a_torn_tail_after_a_crash_is_only_noted() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    append(&mut log, &batch(1, 1_000, 5));
    flush(&mut log);
    let flushed = row(&stopped(&log));
    append(&mut log, &batch(1, 1_000, 5));
    drop(log);
    note(&disk, flushed);
    let path = in_folder(0, Kind::Log);
    let content = disk.content(&path).unwrap();
    disk.put(&path, &content[..content.len() - 7]).unwrap();
    assert_eq!(bad(&disk), []);
    let found = findings(&disk);
    let torn = found.iter().find(|finding| finding.path == path).unwrap();
    assert_eq!(torn.position, Some(content.len() as u64 / 2));
}

#[test]
fn a_missing_seal_is_noted_and_a_lying_one_is_wrong() {
    let (disk, bases) = stopped_directory();
    let path = in_folder(bases[0], Kind::Seal);
    disk.remove_file(&path).unwrap();
    assert_eq!(bad(&disk), []);
    assert!(findings(&disk).iter().any(|finding| finding.path == path));
    disk.put(&path, b"not a seal").unwrap();
    let found = bad(&disk);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].weight, &found[0].path), (Weight::Wrong, &path));
}

/// Two directories with a copy each of the same log.
fn twins() -> (MemDisk, [PathBuf; 2], Vec<Offset>) {
    let (disk, bases) = stopped_directory();
    let other = Path::new("/other");
    disk.create_dir(other).unwrap();
    let folder_there = other.join(partition().to_string());
    disk.create_dir(&folder_there).unwrap();
    for entry in disk.read_dir(&folder()).unwrap() {
        disk.put(&folder_there.join(&entry.name), &disk.content(&folder().join(&entry.name)).unwrap())
            .unwrap();
    }
    let table = disk.content(&Path::new("/data").join(layout::REPLICAS)).unwrap();
    disk.put(&other.join(layout::REPLICAS), &table).unwrap();
    (disk, [PathBuf::from("/data"), other.to_path_buf()], bases)
}

fn compared(disk: &MemDisk, dirs: &[PathBuf]) -> Vec<Finding> {
    let mut found = Vec::new();
    let compared = compare(disk, dirs, &mut |finding| found.push(finding.clone())).unwrap();
    assert_eq!(compared.different, found.len() as u64);
    found
}

#[test]
fn equal_copies_are_equal_and_a_different_batch_is_told_once() {
    let (disk, dirs, bases) = twins();
    assert_eq!(compared(&disk, &dirs), []);
    let path = layout::file_path(&dirs[1].join(partition().to_string()), bases[1], Kind::Log);
    let content = disk.content(&path).unwrap();
    // The base offset, the generation, the checksum, and the length of the first batch.
    for at in [7, 15, 20, 11] {
        let mut changed = content.clone();
        changed[at] ^= 1;
        disk.put(&path, &changed).unwrap();
        let found = compared(&disk, &dirs);
        assert_eq!(found.len(), 1, "byte {at}: {found:?}");
        assert_eq!(found[0].weight, Weight::Damage);
    }
    // A copy that ends early below its mark.
    disk.put(&path, &content[..content.len() / 2]).unwrap();
    assert_eq!(compared(&disk, &dirs).len(), 1);
}

#[test]
fn above_the_lower_mark_copies_may_differ() {
    let (disk, dirs, bases) = twins();
    let last = layout::file_path(&dirs[1].join(partition().to_string()), *bases.last().unwrap(), Kind::Log);
    disk.put(&last, b"").unwrap();
    assert_eq!(compared(&disk, &dirs).len(), 1);
    // The first copy's mark is lower than where they differ.
    let mut lower = row(&Recovered::default());
    lower.mark = *bases.last().unwrap();
    note(&disk, lower);
    assert_eq!(compared(&disk, &dirs), []);
}

#[test]
fn a_new_first_copy_does_not_hide_that_the_others_differ() {
    let (disk, dirs, bases) = twins();
    let whole = compare(&disk, &dirs, &mut |_| {}).unwrap();
    assert_eq!((whole.partitions, whole.copies, whole.pairs, whole.different), (1, 2, 1, 0));
    assert!(whole.batches > 10 && whole.bytes > 1000 && whole.above == 0, "{whole}");
    // A third directory, named first, with a row of a copy that holds nothing.
    let other = MemDisk::new();
    note(&other, row(&Recovered::default()));
    let new = PathBuf::from("/new");
    disk.create_dir(&new).unwrap();
    disk.put(
        &new.join(layout::REPLICAS),
        &other.content(&Path::new("/data").join(layout::REPLICAS)).unwrap(),
    )
    .unwrap();
    let dirs = [&[new], &dirs[..]].concat();
    let with_new = compare(&disk, &dirs, &mut |_| {}).unwrap();
    assert_eq!((with_new.copies, with_new.pairs, with_new.batches), (3, 3, whole.batches));
    let path = layout::file_path(&dirs[2].join(partition().to_string()), bases[1], Kind::Log);
    let mut content = disk.content(&path).unwrap();
    content[20] ^= 1;
    disk.put(&path, &content).unwrap();
    assert_eq!(compared(&disk, &dirs).len(), 1);
}

#[test]
fn a_compacted_copy_may_lack_batches_but_not_tell_another_history() {
    let (disk, dirs, bases) = twins();
    let there = dirs[1].join(partition().to_string());
    let path = layout::file_path(&there, bases[0], Kind::Log);
    let content = disk.content(&path).unwrap();
    let first = felix_protocol::batch::BatchHeader::parse(&content).unwrap().bytes;
    disk.put(&path, &content[first..]).unwrap();
    assert_eq!(compared(&disk, &dirs).len(), 1, "without a seal that says so, nothing may be missing");
    let Found::Seal(sealed) = seal::read(&disk, &there, bases[0]) else { panic!("sealed") };
    let compacted = crate::seal::Seal { gaps: true, ..sealed };
    seal::write(&disk, &there, &compacted.encode(), bases[0]).unwrap();
    assert_eq!(compared(&disk, &dirs), []);
    let mut changed = content[first..].to_vec();
    changed[15] ^= 1;
    disk.put(&path, &changed).unwrap();
    assert_eq!(compared(&disk, &dirs).len(), 1, "another generation");
}

/// A stopped directory with aborted transactions, in a log that `from_start` tells to begin at 0 or behind its first
/// segment.
fn with_aborted(from_start: bool) -> (MemDisk, Vec<Offset>) {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    for round in 0..4 {
        append(&mut log, &in_transaction(7, round * 2, 2));
        append(&mut log, &in_transaction(8, round * 3, 3));
        append(&mut log, &batch(1, 400, 5));
        append(&mut log, &marker(7, TransactionEnd::Abort));
        append(&mut log, &batch(1, 600, 5));
        append(&mut log, &marker(8, if round == 2 { TransactionEnd::Commit } else { TransactionEnd::Abort }));
    }
    let bases = segment_bases(&log);
    let start = if from_start { 0 } else { bases[1] };
    flush(&mut log);
    log.advance_start(start).unwrap();
    let recovered = close(log);
    note(&disk, row(&recovered));
    if !from_start {
        for kind in Kind::ALL {
            let _ = disk.remove_file(&in_folder(0, kind));
        }
    }
    (disk, bases)
}

#[test]
fn lists_of_aborted_transactions_are_held_against_the_markers() {
    for from_start in [true, false] {
        let (disk, bases) = with_aborted(from_start);
        assert_eq!(bad(&disk), []);
        let mut lists = 0;
        for base in bases.iter().skip(usize::from(!from_start)) {
            let path = in_folder(*base, Kind::TxnIndex);
            let Ok(content) = disk.content(&path) else { continue };
            lists += 1;
            for at in 0..content.len() {
                let mut changed = content.clone();
                changed[at] ^= 1 << (at % 8);
                disk.put(&path, &changed).unwrap();
                let found = bad(&disk);
                // What began before the log does, only the list itself knows.
                let unknown = !from_start && *base == bases[1] && (10..18).contains(&(at % 34));
                let told = found.len() == 1 && (found[0].weight, &found[0].path) == (Weight::Wrong, &path);
                assert!(told || unknown && found.is_empty(), "{base} byte {at}: {found:?}");
            }
            // Without it, or without one of its entries, records would come back.
            for fewer in (0..content.len()).step_by(34) {
                disk.put(&path, &content[..fewer]).unwrap();
                let found = bad(&disk);
                assert_eq!(found.len(), 1, "{base}, {fewer} bytes");
                assert!(found[0].meaning.contains("shown as committed"), "{found:?}");
            }
            disk.remove_file(&path).unwrap();
            let found = bad(&disk);
            assert_eq!((found.len(), &found[0].path), (1, &path));
            disk.put(&path, &content).unwrap();
        }
        assert!(lists > 2, "{lists}");
        // An entry where no marker stands.
        let entry = crate::AbortedTransaction {
            producer_id: 7,
            first_offset: bases[2],
            last_offset: bases[2] + 1,
            last_stable_offset: bases[2],
        };
        let path = in_folder(bases[2], Kind::TxnIndex);
        disk.put(&path, &crate::index::txn::encode(&[entry])).unwrap();
        assert!(bad(&disk).iter().any(|finding| finding.meaning.contains("no marker")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hostile_files_are_told_and_printed_and_crash_nobody(
        content in proptest::collection::vec(any::<u8>(), 0..300),
        which in any::<proptest::sample::Index>(),
        at in any::<proptest::sample::Index>(),
        far in any::<bool>(),
    ) {
        let (disk, bases) = stopped_directory();
        let mut paths: Vec<PathBuf> = disk.read_dir(&folder()).unwrap().iter().map(|e| folder().join(&e.name)).collect();
        paths.push(Path::new("/data").join(layout::REPLICAS));
        paths.push(Path::new("/data").join(layout::META_PROPERTIES));
        // Names whose offsets are as large as they can be.
        paths.extend(Kind::ALL.iter().map(|kind| in_folder(Offset::MAX, *kind)));
        let path = which.get(&paths);
        let old = disk.content(path).unwrap_or_default();
        // Either nothing but garbage, or garbage somewhere in what was there.
        let mut new = if far { old } else { Vec::new() };
        let from = at.index(new.len() + 1);
        let to = (from + content.len()).min(new.len());
        new.splice(from..to, content.iter().copied());
        disk.put(path, &new).unwrap();
        let mut out = Vec::new();
        crate::dump::dump(&disk, Path::new("/data"), &mut out).unwrap();
        prop_assert!(!out.is_empty());
        let (_, _) = (findings(&disk), bases);
        let twice = [PathBuf::from("/data"), PathBuf::from("/data")];
        prop_assert_eq!(compared(&disk, &twice), []);
    }
}
