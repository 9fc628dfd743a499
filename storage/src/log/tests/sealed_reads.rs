//! Closed segments read by their seals.

use std::sync::Arc;

use super::compaction::{at, compacted, keyed, roll, round};
use super::*;
use crate::seal::marks::Sealed;

/// Segments of about 1 MiB.
fn large() -> LogConfig {
    LogConfig { segment_bytes: 1 << 20, index_interval_bytes: 4096, ..small() }
}

/// A log of three closed segments and one that is written, of batches of about 60 KB and, in between, a large and many small ones.
fn log(disk: &MemDisk) -> Log<MemDisk> {
    let mut log = Log::create(&without_tail(disk), partition(), large(), 0, NOW).unwrap();
    let mut step = 0;
    while segment_bases(&log).len() < 4 {
        let size = match step % 17 {
            5 => 700_000,
            9..=11 => 300,
            _ => 60_000,
        };
        append(&mut log, &batch(1 + step % 3, size / (1 + usize::try_from(step % 3).unwrap()), step));
        step += 1;
    }
    flush(&mut log);
    log
}

/// The batches up to the last closed segment's end, read by the seals.
fn by_seals(log: &Log<MemDisk>, max_bytes: usize) -> Result<Vec<(Offset, Offset)>, ReadError> {
    let (reader, mut from, mut all) = (log.reader(), log.start(), Vec::new());
    while let Some(read) = reader.read_sealed(from, max_bytes, Offset::MAX)? {
        assert!(read.next > from && read.bytes == joined(&read).len(), "no progress at {from}");
        all.extend(ranges(&read));
        from = read.next;
    }
    assert!(from >= *segment_bases(log).last().unwrap(), "stopped at {from}");
    Ok(all)
}

#[test]
fn what_is_read_by_seals_is_what_is_read_without() {
    let disk = MemDisk::new();
    let log = log(&disk);
    let active = *segment_bases(&log).last().unwrap();
    let mut all = everything(&log.reader());
    all.retain(|(base, _)| *base < active);
    for max_bytes in [0, 1, 1_000, 70_000, 300_000, 1 << 20, 100 << 20] {
        assert_eq!(by_seals(&log, max_bytes).unwrap(), all, "{max_bytes} at a time");
    }
    let reader = log.reader();
    for from in 0..active {
        for max_bytes in [0, 70_000, 1 << 20] {
            let read = reader.read_sealed(from, max_bytes, Offset::MAX).unwrap().unwrap();
            let first = reader.read(from, 0, Offset::MAX, true).unwrap();
            assert_eq!(ranges(&read)[0], ranges(&first)[0], "from {from}");
            assert!(read.bytes <= max_bytes || ranges(&read).len() == 1, "from {from}, {max_bytes}");
            assert!(read.held <= max_bytes.max(524_288) + 8_192 || read.bytes > 524_288, "{}", read.held);
        }
    }
    // What is being written has no seal, and what a limit forbids is not read.
    assert!(reader.read_sealed(active, 1 << 20, Offset::MAX).unwrap().is_none());
    let limited = reader.read_sealed(0, 100 << 20, 9).unwrap().map_or(0, |read| read.next);
    assert!(limited <= 9, "{limited}");
}

/// The 21 bytes in front of what a batch's own checksum covers, one after the other, and some that it covers.
#[test]
fn a_changed_byte_is_never_given_away_and_is_told() {
    let before = MemDisk::new();
    let told = log(&before);
    let bases = segment_bases(&told);
    let all = everything(&told.reader());
    let recovered = close(told);
    let (batch_at, own) = {
        let content = Bytes::from(before.content(&in_folder(bases[1], Kind::Log)).unwrap());
        let mut at = 0;
        let batches = Batches::new(content).map(|batch| batch.unwrap().header);
        let begins: Vec<usize> = batches.map(|header| (at, at += header.bytes).0).collect();
        (begins, 21)
    };
    let middle = batch_at[batch_at.len() / 2];
    for place in
        (0..own).map(|at| middle + at).chain((0..own).map(|at| batch_at[0] + at)).chain([middle + 500])
    {
        let disk = before.crash(Crash::KeepAll);
        let path = in_folder(bases[1], Kind::Log);
        let mut content = disk.content(&path).unwrap();
        content[place] ^= 0x01;
        disk.put(&path, &content).unwrap();
        let (log, _) = open(&disk, large(), recovered);
        let (reader, mut from, mut given) = (log.reader(), 0, Vec::new());
        let error = loop {
            match reader.read_sealed(from, 1 << 20, Offset::MAX) {
                Ok(read) => {
                    let read = read.unwrap();
                    given.extend(ranges(&read));
                    from = read.next;
                }
                Err(error) => break error,
            }
        };
        let ReadError::Damaged(damaged) = error else { panic!("byte {place}: {error}") };
        assert_eq!(damaged.segment, path, "byte {place}");
        assert_eq!(given, all[..given.len()], "byte {place}");
        assert!(from < bases[2] && given.iter().all(|(_, next)| *next <= from));
        let unsettled = log.reader().dir().damage().take_unsettled();
        assert_eq!(unsettled[&partition()], std::slice::from_ref(&damaged), "byte {place}");
        assert_eq!(log.reader().damage(), [damaged], "byte {place}");
        // Whoever asks again gets no more than the first.
        let again = reader.read_sealed(from, 1 << 20, Offset::MAX);
        assert!(matches!(again, Err(ReadError::Damaged(_))), "byte {place}");
        let again = reader.read_sealed(from, 0, Offset::MAX);
        assert!(matches!(again, Err(ReadError::Damaged(_))), "byte {place}");
        // What stands behind the segment is right.
        let next = reader.read_sealed(bases[2], 1 << 20, Offset::MAX).unwrap().unwrap();
        assert_eq!(ranges(&next)[0].0, bases[2]);
    }
}

#[test]
fn without_a_seal_of_all_its_bytes_a_segment_is_not_read_by_it() {
    let disk = MemDisk::new();
    let log = log(&disk);
    let bases = segment_bases(&log);
    let path = in_folder(bases[0], Kind::Seal);
    let content = disk.content(&path).unwrap();
    let sealed = Sealed::decode(&content, 0).unwrap();
    assert!(sealed.marks.as_ref().unwrap().len() >= 1);
    let is_read = |content: &[u8]| {
        disk.put(&path, content).unwrap();
        log.segments()[0].forget_seal();
        log.reader().read_sealed(0, 1 << 20, Offset::MAX).unwrap().is_some()
    };
    assert!(is_read(&content));
    let size = sealed.seal.size - 1;
    let wrong = Sealed { seal: crate::seal::Seal { size, ..sealed.seal }, ..sealed.clone() };
    for (what, content) in [
        ("of an earlier version", sealed.seal.encode()),
        ("of another size", wrong.encode()),
        ("none", Vec::new()),
        ("torn", content[..content.len() - 1].to_vec()),
    ] {
        assert!(!is_read(&content), "{what}");
    }
    assert!(log.reader().damage().is_empty());
    assert!(is_read(&content));
}

/// Marks that are wrong beside a seal that is right are nobody's damage, and cost one look.
#[test]
fn wrong_marks_alone_are_no_damage() {
    let disk = MemDisk::new();
    let log = log(&disk);
    let path = in_folder(0, Kind::Seal);
    let mut content = disk.content(&path).unwrap();
    let own = content.len() - 4;
    content[44 + 8] ^= 1;
    let crc =
        crc32c::crc32c_append(u32::from_be_bytes(content[36..40].try_into().unwrap()), &content[40..own]);
    content[own..].copy_from_slice(&crc.to_be_bytes());
    disk.put(&path, &content).unwrap();
    let reader = log.reader();
    assert!(reader.read_sealed(0, 1, Offset::MAX).unwrap().is_none());
    assert!(reader.damage().is_empty());
    let before = disk.counters().read_bytes;
    assert!(reader.read_sealed(0, 1, Offset::MAX).unwrap().is_none());
    assert_eq!(disk.counters().read_bytes, before);
}

/// A segment is cut and written on while its seal is known, and closed with as many bytes as before.
#[test]
fn a_segment_that_was_cut_is_read_by_its_new_seal() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), small(), 0, NOW).unwrap();
    for step in 0..20 {
        append(&mut log, &batch(1, 400, step));
    }
    flush(&mut log);
    let base = segment_bases(&log)[1];
    let reader = log.reader();
    let old = reader.read_sealed(base, 500, Offset::MAX).unwrap().unwrap();
    log.truncate(base + 1, NOW).unwrap();
    for step in 100..120 {
        append(&mut log, &batch(1, 400, step));
    }
    flush(&mut log);
    assert_eq!(segment_bases(&log)[1], base);
    // Its checksum was lost with the cut: whoever looks through it makes the seal.
    assert!(reader.read_sealed(base, 1 << 20, Offset::MAX).unwrap().is_none());
    let mut buf = Vec::new();
    while let Some(mut scrub) = reader.scrub(WallTime(NOW.0 + 10), 5) {
        while !matches!(scrub.step(&mut buf).unwrap(), crate::scrub::Progress::Done(_)) {}
    }
    let new = reader.read_sealed(base, 1 << 20, Offset::MAX).unwrap().unwrap();
    assert!(joined(&new).starts_with(&joined(&old)));
    assert_eq!(joined(&new), joined(&reader.read(base, new.bytes, Offset::MAX, true).unwrap()));
    assert!(reader.damage().is_empty());
}

/// Compaction puts other bytes in the place of those that somebody reads; so does retention with nothing.
#[test]
fn a_segment_that_was_replaced_or_deleted_is_no_damage() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    for step in 0..12 {
        let value = format!("{step}").repeat(150);
        append(&mut log, &keyed(&[("a", Some(&value)), ("b", Some(&value))]));
    }
    roll(&mut log);
    let reader = log.reader();
    // Its seal is known to this segment from now on.
    assert!(reader.read_sealed(0, 1, Offset::MAX).unwrap().is_some());
    let before = log.segments()[0].clone();
    assert!(before.sealed().is_some());
    assert_ne!(round(&mut log, at(1)), Default::default());
    assert!(!log.segments().iter().any(|segment| Arc::ptr_eq(segment, &before)));
    let (mut from, mut all) = (0, Vec::new());
    let active = *segment_bases(&log).last().unwrap();
    while from < active {
        let read = reader.read_sealed(from, 1, Offset::MAX).unwrap().expect("it was sealed anew");
        all.extend(ranges(&read));
        from = read.next;
    }
    let mut plain = everything(&reader);
    plain.retain(|(base, _)| *base < active);
    assert_eq!(all, plain);
    log.advance_start(active).unwrap();
    assert!(matches!(reader.read_sealed(0, 1, Offset::MAX), Err(ReadError::BelowStart { .. })));
    assert!(reader.damage().is_empty());
}

/// Marks go on over a clean stop, and are made again after a crash and by the scrub.
#[test]
fn marks_outlive_the_process() {
    for clean in [true, false] {
        let disk = MemDisk::new();
        let mut log = Log::create(&without_tail(&disk), partition(), large(), 0, NOW).unwrap();
        for step in 0..12 {
            append(&mut log, &batch(1, 60_000, step));
        }
        flush(&mut log);
        let recovered = if clean {
            close(log)
        } else {
            let recovered = stopped(&log);
            drop(log);
            recovered
        };
        let (mut log, _) = open(&disk, large(), recovered);
        for step in 12..20 {
            append(&mut log, &batch(1, 60_000, step));
        }
        flush(&mut log);
        let path = in_folder(0, Kind::Seal);
        let sealed = disk.content(&path).unwrap();
        let marks = Sealed::decode(&sealed, 0).unwrap().marks.unwrap();
        assert_eq!(marks.len(), 3, "clean: {clean}");
        disk.put(&path, &[]).unwrap();
        let reader = log.reader();
        let mut scrub = reader.scrub(WallTime(NOW.0 + 10), 5).unwrap();
        let mut buf = Vec::new();
        while !matches!(scrub.step(&mut buf).unwrap(), crate::scrub::Progress::Done(_)) {}
        assert_eq!(disk.content(&path).unwrap(), sealed, "clean: {clean}");
    }
}
