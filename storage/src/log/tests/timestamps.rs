use super::*;

/// What is in the log: offset and timestamp of each record.
struct Truth(Vec<(Offset, i64)>);

impl Truth {
    fn first_since(&self, timestamp: i64, start: Offset, limit: Offset) -> Option<(Offset, i64)> {
        self.0.iter().copied().find(|(offset, at)| *at >= timestamp && *offset >= start && *offset < limit)
    }

    fn latest(&self, start: Offset, limit: Offset) -> Option<(Offset, i64)> {
        let inside = self.0.iter().copied().filter(|(offset, _)| (start..limit).contains(offset));
        inside.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }
}

fn check(reader: &LogReader<MemDisk>, truth: &Truth, limits: &[Offset]) {
    let start = reader.start();
    for limit in limits {
        for timestamp in -2..60 {
            let found = reader.offset_for_timestamp(timestamp, *limit).unwrap();
            assert_eq!(
                found.map(|found| (found.offset, found.timestamp)),
                truth.first_since(timestamp, start, *limit),
                "timestamp {timestamp} below {limit} from {start}"
            );
        }
        let found = reader.max_timestamp(*limit).unwrap();
        assert_eq!(
            found.map(|found| (found.offset, found.timestamp)),
            truth.latest(start, *limit),
            "greatest below {limit} from {start}"
        );
    }
}

fn disordered(disk: &MemDisk, size: usize, codec: Codec) -> (Log<MemDisk>, Truth, Vec<Offset>) {
    let mut log = Log::create(&without_tail(disk), partition(), small(), 0, NOW).unwrap();
    let mut truth = Truth(Vec::new());
    let mut limits = vec![0];
    let timestamps: Vec<i64> = (0..50).map(|at| (at * 37 + 11) % 50).collect();
    for chunk in timestamps.chunks(size) {
        let mut builder = BatchBuilder::new().codec(codec, 0);
        for timestamp in chunk {
            builder.push(*timestamp, None, Some(&[7; 90]));
        }
        let appended = append(&mut log, &builder.build().unwrap());
        for (at, timestamp) in (0..).zip(chunk) {
            truth.0.push((appended.base_offset + at, *timestamp));
        }
        limits.push(appended.end);
    }
    (log, truth, limits)
}

#[test]
fn every_timestamp_is_found_in_any_disorder_codec_and_life_of_the_files() {
    for size in [1, 5, 50] {
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd, Codec::Gzip, Codec::Snappy] {
            let disk = MemDisk::new();
            let (log, truth, limits) = disordered(&disk, size, codec);
            check(&log.reader(), &truth, &limits);
            let recovered = close(log);
            let (log, report) = open(&disk, small(), recovered);
            assert_eq!(report, LoadReport::default());
            check(&log.reader(), &truth, &limits);
            let bases = segment_bases(&log);
            drop(log);
            for base in bases {
                let _ = disk.remove_file(&in_folder(base, Kind::TimeIndex));
            }
            let (mut log, _) = open(&disk, small(), recovered);
            check(&log.reader(), &truth, &limits);
            log.advance_start(13).unwrap();
            check(&log.reader(), &truth, &limits);
        }
    }
}

#[test]
fn lying_indexes_are_noticed() {
    for lie in 0..5 {
        let disk = MemDisk::new();
        let (log, truth, limits) = disordered(&disk, 1, Codec::None);
        let recovered = close(log);
        let other = disk.content(&in_folder(0, Kind::TimeIndex)).unwrap();
        for name in crate::disk::Disk::read_dir(&disk, &folder()).unwrap() {
            let path = folder().join(&name.name);
            if !name.name.ends_with("index") {
                continue;
            }
            let content = disk.content(&path).unwrap();
            let wrong = match lie {
                0 => Vec::new(),
                1 => content[..content.len().saturating_sub(1)].to_vec(),
                2 => vec![0; content.len()],
                3 => vec![0xFF; content.len()],
                _ => other.clone(),
            };
            disk.put(&path, &wrong).unwrap();
        }
        let (log, _) = open(&disk, small(), recovered);
        check(&log.reader(), &truth, &limits);
        assert_eq!(everything(&log.reader()).len(), 50);
    }
}

#[test]
fn append_time_is_the_time_of_the_first_record() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    let mut builder = BatchBuilder::new().append_time();
    for _ in 0..3 {
        builder.push(77, None, Some(b"x"));
    }
    append(&mut log, &builder.build().unwrap());
    let found = log.reader().max_timestamp(3).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp, found.generation), (0, 77, Some(generation(1))));
    assert_eq!(log.reader().max_timestamp(2).unwrap(), None, "the batch reaches beyond");
    assert!(log.reader().offset_for_timestamp(78, 3).unwrap().is_none());
}
