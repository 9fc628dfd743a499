//! Files of a partition's folder, each missing, emptied, cut, replaced: side files are built again and lie to nobody;
//! damage of records is noticed, told, never cut and never passed over in silence.

use super::*;
use crate::disk::Disk;

/// Thirty batches of twenty records by an idempotent producer, over three generations and many segments.
fn filled(disk: &MemDisk) -> Log<MemDisk> {
    let mut log = create(disk, small());
    for at in 0..30 {
        let number = u32::try_from(1 + at / 12).unwrap();
        log.append(&numbered(7, 0, at * 20, 20), generation(number), NOW).unwrap();
    }
    flush(&mut log);
    log
}

const END: Offset = 600;

/// A stop in order, or a kill; and what the table of copies then says.
fn ended(clean: bool) -> (MemDisk, Recovered) {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let recovered = if clean { close(log) } else { Recovered { mark: END, ..stopped(&log) } };
    (disk, recovered)
}

fn harmed(content: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut flipped = content.to_vec();
    if let Some(byte) = flipped.last_mut() {
        *byte ^= 0x10;
    }
    vec![
        None,
        Some(Vec::new()),
        Some(b"x".to_vec()),
        Some(vec![0xA5; content.len().max(60)]),
        Some(vec![0; content.len()]),
        Some(content[..content.len() / 2].to_vec()),
        Some(flipped),
    ]
}

/// What can be read, offset by offset; stops at the first error and returns it.
fn readable(reader: &LogReader<MemDisk>, from: Offset) -> (Offset, Option<ReadError>) {
    let mut at = from;
    while at < reader.end() {
        match reader.read(at, 1, Offset::MAX, true) {
            Ok(read) if read.next > at => at = read.next,
            Ok(_) => return (at, None),
            Err(error) => return (at, Some(error)),
        }
    }
    (at, None)
}

#[test]
fn side_files_are_built_again_whatever_became_of_them() {
    for clean in [true, false] {
        let (disk, recovered) = ended(clean);
        let (before, _) = open(&disk.crash(Crash::KeepAll), small(), recovered);
        let names: Vec<_> = disk.read_dir(&folder()).unwrap();
        let side: Vec<_> = names.iter().filter(|entry| !entry.name.ends_with(".log")).collect();
        assert!(side.len() > 10, "{side:?}");
        for entry in side {
            let path = folder().join(&entry.name);
            let content = disk.content(&path).unwrap();
            let folder_instead = std::iter::once(None).filter(|_| clean);
            for (turn, harm) in harmed(&content).into_iter().chain(folder_instead).enumerate() {
                let after = disk.crash(Crash::KeepAll);
                match &harm {
                    Some(harm) => after.put(&path, harm).unwrap(),
                    None => after.remove_file(&path).unwrap(),
                }
                if turn == harmed(&content).len() {
                    after.create_dir(&path).unwrap();
                }
                let case = format!("{} clean: {clean} turn: {turn}", entry.name);
                let opened = try_open(&after, small(), recovered);
                let (log, report) = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert!(report.damage.is_empty(), "{case}: {:?}", report.damage);
                assert_eq!((log.start(), log.end()), (0, END), "{case}");
                assert_eq!(everything(&log.reader()).len(), 30, "{case}");
                assert_eq!(
                    log.reader().max_timestamp(END).unwrap(),
                    before.reader().max_timestamp(END).unwrap(),
                    "{case}"
                );
                assert_eq!(log.generations(), &log.map_from_batches().unwrap(), "{case}");
                let verdict = log.producers().check(numbered(7, 0, 580, 20).header());
                assert!(matches!(verdict, crate::Verdict::Duplicate { base_offset: 580, .. }), "{case}");
            }
        }
    }
}

#[test]
fn a_segment_that_is_gone_is_told_and_never_passed_over() {
    for clean in [true, false] {
        let (disk, recovered) = ended(clean);
        let (log, _) = open(&disk.crash(Crash::KeepAll), small(), recovered);
        let bases = segment_bases(&log);
        for (at, base) in bases.iter().enumerate() {
            let next = bases.get(at + 1).copied().unwrap_or(END);
            let after = disk.crash(Crash::KeepAll);
            after.remove_file(&in_folder(*base, Kind::Log)).unwrap();
            let case = format!("segment {base} of {bases:?}, clean: {clean}");
            // The copy that vouched for it does not open as if nothing was.
            match try_open(&after, small(), recovered) {
                Ok((_, report)) => assert!(!report.damage.is_empty(), "{case}"),
                Err(StorageError::Damaged(damaged)) => assert!(damaged.promised, "{case}"),
                Err(error) => panic!("{case}: {error}"),
            }
            // Under a new identity everything else is there, and goes on.
            let unclean = Recovered { clean: false, mark: 0, cut_ambiguous: true, ..recovered };
            let (mut log, report) = open(&after, small(), unclean);
            assert!(!report.damage.is_empty(), "{case}");
            let reader = log.reader();
            let (reached, error) = readable(&reader, 0);
            assert!(matches!(error, Some(ReadError::Damaged(_))), "{case}: {error:?}");
            assert_eq!(reached, *base, "{case}");
            assert_eq!(readable(&reader, next).0, END, "{case}");
            assert_eq!(log.end(), END, "{case}: no offset is given twice");
            assert!(!reader_dir(&log).damage().all().is_empty());
            let appended = append_newer(&mut log);
            assert_eq!(appended.base_offset, END);
            assert_eq!(readable(&log.reader(), END).0, END + 1);
            // The file put back heals.
            flush(&mut log);
            let content = disk.content(&in_folder(*base, Kind::Log)).unwrap();
            let recovered = Recovered { mark: 0, ..stopped(&log) };
            drop((log, reader));
            if at + 1 < bases.len() {
                after.put(&in_folder(*base, Kind::Log), &content).unwrap();
                let (log, report) = open(&after, small(), recovered);
                assert!(report.damage.is_empty(), "{case}: {:?}", report.damage);
                assert_eq!(readable(&log.reader(), 0).0, END + 1, "{case}");
            }
        }
    }
}

fn reader_dir(log: &Log<MemDisk>) -> &DataDir<MemDisk> {
    &log.shared.home.dir
}

fn append_newer(log: &mut Log<MemDisk>) -> Appended {
    log.append(&batch(1, 10, 5_000), generation(9), NOW).unwrap()
}

#[test]
fn damaged_records_are_told_and_everything_around_them_is_served() {
    for clean in [true, false] {
        let (disk, recovered) = ended(clean);
        let (log, _) = open(&disk.crash(Crash::KeepAll), small(), recovered);
        let bases = segment_bases(&log);
        drop(log);
        for (at, base) in bases.iter().enumerate() {
            let path = in_folder(*base, Kind::Log);
            let next = bases.get(at + 1).copied().unwrap_or(END);
            let whole = disk.content(&path).unwrap();
            for harm in harmed(&whole).into_iter().flatten() {
                let case = format!("segment {base}, {} of {} bytes, clean: {clean}", harm.len(), whole.len());
                let after = disk.crash(Crash::KeepAll);
                after.put(&path, &harm).unwrap();
                let noticed = match try_open(&after, small(), recovered) {
                    Ok((_, report)) => !report.damage.is_empty(),
                    Err(StorageError::Damaged(damaged)) => damaged.promised,
                    Err(error) => panic!("{case}: {error}"),
                };
                // What has the right size is found by whoever reads it.
                assert!(noticed || harm.len() == whole.len(), "{case}");
                let unclean = Recovered { clean: false, mark: 0, cut_ambiguous: true, ..recovered };
                let (mut log, _) = open(&after, small(), unclean);
                // An empty file may go.
                let left = after.content(&path).unwrap_or_default().len();
                assert_eq!(left, harm.len(), "{case}: nothing is cut");
                let (reached, error) = readable(&log.reader(), 0);
                assert!(matches!(error, Some(ReadError::Damaged(_))), "{case}: {error:?}");
                assert!((*base..next).contains(&reached), "{case}: {reached}");
                assert_eq!(readable(&log.reader(), next).0, END, "{case}");
                assert_eq!(append_newer(&mut log).base_offset, END, "{case}: no offset is given twice");
                assert!(!reader_dir(&log).damage().all().is_empty(), "{case}");
            }
        }
    }
}

#[test]
fn a_log_that_no_table_knows_is_opened_with_all_it_has() {
    let (disk, _) = ended(false);
    let dir = without_tail(&disk);
    let (log, _) = Log::open_unknown(&dir, partition(), small(), NOW).unwrap().unwrap();
    assert_eq!((log.start(), log.end()), (0, END));
    drop(log);
    let nobody = PartitionId { index: 9, ..partition() };
    assert!(Log::open_unknown(&dir, nobody, small(), NOW).unwrap().is_none());
    // Deleted records within the first segment stay deleted, as the generation map remembers.
    let (mut log, _) = Log::open_unknown(&dir, partition(), small(), NOW).unwrap().unwrap();
    log.advance_start(3).unwrap();
    append_newer(&mut log);
    flush(&mut log);
    let job = log.close_clean(NOW).unwrap();
    job.run().unwrap();
    let (log, _) = Log::open_unknown(&dir, partition(), small(), NOW).unwrap().unwrap();
    assert_eq!(log.start(), 3);
}
