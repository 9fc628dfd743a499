use proptest::prelude::*;

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

#[derive(Clone, Debug)]
enum Step {
    Append { stamps: Vec<u8>, codec: usize, append_time: bool },
    Roll,
    Restart,
    Kill,
    Lose { offsets: bool, times: bool },
    Advance(u8),
    Retain(u64),
    Truncate(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let stamps = proptest::collection::vec(any::<u8>(), 1..7);
    prop_oneof![
        12 => (stamps, 0..5_usize, 0..8_u8)
            .prop_map(|(stamps, codec, kind)| Step::Append { stamps, codec, append_time: kind == 0 }),
        2 => Just(Step::Roll),
        2 => Just(Step::Restart),
        1 => Just(Step::Kill),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(offsets, times)| Step::Lose { offsets, times }),
        1 => any::<u8>().prop_map(Step::Advance),
        1 => (0..6_000_u64).prop_map(Step::Retain),
        1 => any::<u8>().prop_map(Step::Truncate),
    ]
}

/// Most times are near each other; some are none, the first, and as far away as can be.
fn stamp(seed: u8) -> i64 {
    match seed {
        0..=15 => -1,
        16..=20 => 0,
        21..=25 => i64::MAX,
        26..=30 => i64::MAX / 1_000,
        _ => i64::from(seed % 50),
    }
}

/// A log with all that should be found in it.
struct Times {
    disk: MemDisk,
    log: Option<Log<MemDisk>>,
    config: LogConfig,
    record_bytes: usize,
    truth: Truth,
    limits: Vec<Offset>,
}

impl Times {
    fn new(large: bool) -> Times {
        let disk = MemDisk::new();
        // Large enough for an active segment that is not simply read again at a start.
        let segment_bytes = if large { 3 * SHORT } else { 2_000 };
        let config = LogConfig { segment_bytes, ..small() };
        let log = Log::create(&without_tail(&disk), partition(), config.clone(), 0, NOW).unwrap();
        let record_bytes = if large { 9_000 } else { 90 };
        Times { disk, log: Some(log), config, record_bytes, truth: Truth(Vec::new()), limits: vec![0] }
    }

    fn log(&mut self) -> &mut Log<MemDisk> {
        self.log.as_mut().unwrap()
    }

    fn reopen(&mut self, recovered: Recovered) {
        self.log = None;
        self.log = Some(open(&self.disk, self.config.clone(), recovered).0);
        flush(self.log());
    }

    fn part(&mut self, part: u8) -> Offset {
        let (start, end) = (self.log().start(), self.log().end());
        start + (end - start) * Offset::from(part) / 255
    }

    fn append(&mut self, stamps: &[u8], codec: usize, append_time: bool) {
        let codec = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd][codec];
        let mut builder = BatchBuilder::new().codec(codec, codec.default_level());
        if append_time {
            builder = builder.append_time();
        }
        let value: Vec<u8> = (0..self.record_bytes).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
        let stamps: Vec<i64> = stamps.iter().map(|seed| stamp(*seed)).collect();
        for stamp in &stamps {
            builder.push(*stamp, None, Some(&value));
        }
        let greatest = stamps.iter().copied().max().unwrap();
        let appended = append(self.log(), &builder.build().unwrap());
        for (at, stamp) in (appended.base_offset..).zip(stamps) {
            self.truth.0.push((at, if append_time { greatest } else { stamp }));
        }
        self.limits.push(appended.end);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Append { stamps, codec, append_time } => self.append(&stamps, codec, append_time),
            Step::Roll => {
                let end = self.log().end();
                self.log().roll(end, NOW).unwrap();
            }
            Step::Restart => {
                let recovered = close(self.log.take().unwrap());
                self.reopen(recovered);
            }
            Step::Kill => {
                flush(self.log());
                let recovered = stopped(self.log());
                self.reopen(recovered);
            }
            Step::Lose { offsets, times } => {
                let bases = segment_bases(self.log());
                let recovered = close(self.log.take().unwrap());
                for base in bases {
                    for (kind, lose) in [(Kind::Index, offsets), (Kind::TimeIndex, times)] {
                        if lose {
                            let _ = self.disk.remove_file(&in_folder(base, kind));
                        }
                    }
                }
                self.reopen(recovered);
            }
            Step::Advance(part) => {
                let to = self.part(part);
                self.log().advance_start(to).unwrap();
            }
            Step::Retain(bytes) => {
                let (mark, config) = (self.log().end(), self.config.clone());
                self.log().set_config(LogConfig { retention_bytes: Some(bytes), ..config.clone() });
                let mut retired = self.log().retain(mark, NOW).unwrap();
                self.log().set_config(config);
                retired.hide().unwrap();
                retired.remove().unwrap();
            }
            Step::Truncate(part) => {
                flush(self.log());
                let to = self.part(part);
                if let Ok(end) = self.log().truncate(to, NOW) {
                    self.truth.0.retain(|(offset, _)| *offset < end);
                    self.limits.retain(|limit| *limit <= end);
                }
            }
        }
    }

    fn check(&mut self) {
        let reader = self.log().reader();
        let start = reader.start();
        let wanted: std::collections::BTreeSet<i64> = self
            .truth
            .0
            .iter()
            .flat_map(|(_, at)| [at.saturating_sub(1), *at, at.saturating_add(1)])
            .collect();
        let newest = self.limits.len().saturating_sub(3);
        for limit in self.limits[newest..].iter().chain(self.limits.first()) {
            for timestamp in &wanted {
                let found = reader.offset_for_timestamp(*timestamp, *limit).unwrap();
                let expected = self.truth.first_since(*timestamp, start, *limit);
                let found = found.map(|found| (found.offset, found.timestamp));
                assert_eq!(found, expected, "timestamp {timestamp} below {limit} from {start}");
            }
            let found = reader.max_timestamp(*limit).unwrap();
            let found = found.map(|found| (found.offset, found.timestamp));
            assert_eq!(found, self.truth.latest(start, *limit), "greatest below {limit} from {start}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Known faults B012, B013 and B047, in any history: what is found is what going over all records finds.
    #[test]
    fn what_is_found_by_time_is_what_a_scan_finds(
        large in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut times = Times::new(large);
        for (number, step) in steps.into_iter().enumerate() {
            times.take(step);
            if number % 4 == 0 {
                times.check();
            }
        }
        times.check();
    }
}
