use proptest::prelude::*;

use super::*;

/// What the log should hold.
#[derive(Clone, Default)]
struct Model {
    start: Offset,
    batches: Vec<(Offset, Offset)>,
    end: Offset,
    /// The generation of the batch that begins there.
    generations: std::collections::BTreeMap<Offset, u32>,
    /// The last sequence of the numbered batch that begins there.
    sequences: std::collections::BTreeMap<Offset, i32>,
}

impl Model {
    fn visible(&self, from: Offset, limit: Offset) -> Vec<(Offset, Offset)> {
        self.batches.iter().copied().filter(|(_, next)| *next > from && *next <= limit).collect()
    }

    fn cut(&mut self, to: Offset) {
        self.batches.retain(|(_, next)| *next <= to);
        self.sequences.retain(|base, _| *base < to);
        self.end = to;
    }

    fn at_or_before(&self, offset: Offset) -> Offset {
        let below = self.batches.iter().map(|(_, next)| *next).filter(|next| *next <= offset).max();
        below.or(self.batches.first().map(|(base, _)| *base)).unwrap_or(self.start)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append { records: i64, size: usize, generation_step: u32, sequence: bool },
    Flush,
    Read { from: u8, max: usize, limit: u8 },
    Restart,
    Crash(u64),
    KillOnly,
    Retain { bytes: u64 },
    Advance { part: u8 },
    Truncate { part: u8 },
    Roll,
    Full,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..20_i64, 0..600_usize, 0..8_u32, any::<bool>()).prop_map(
            |(records, size, step, sequence)| Op::Append {
                records,
                size,
                generation_step: u32::from(step == 0),
                sequence,
            }
        ),
        4 => Just(Op::Flush),
        4 => (any::<u8>(), 0..5_000_usize, any::<u8>())
            .prop_map(|(from, max, limit)| Op::Read { from, max, limit }),
        1 => Just(Op::Restart),
        2 => any::<u64>().prop_map(Op::Crash),
        1 => Just(Op::KillOnly),
        1 => (0..8_000_u64).prop_map(|bytes| Op::Retain { bytes }),
        1 => any::<u8>().prop_map(|part| Op::Advance { part }),
        1 => any::<u8>().prop_map(|part| Op::Truncate { part }),
        1 => Just(Op::Roll),
        1 => Just(Op::Full),
    ]
}

/// A log with everything that its owner keeps about it.
struct World {
    disk: MemDisk,
    log: Option<Log<MemDisk>>,
    model: Model,
    /// What the table of copies says, durably.
    row: Recovered,
    generation: u32,
    sequence: i32,
    tail: usize,
}

impl World {
    fn new(tail: usize) -> World {
        let disk = MemDisk::new();
        let limits = Limits { tail_bytes: tail, open_files: 8, ..Limits::default() };
        let mut log = Log::create(&limited(&disk, limits), partition(), small(), 0, NOW).unwrap();
        flush(&mut log);
        World {
            disk,
            log: Some(log),
            model: Model::default(),
            row: Recovered::default(),
            generation: 1,
            sequence: 0,
            tail,
        }
    }

    fn log(&mut self) -> &mut Log<MemDisk> {
        self.log.as_mut().unwrap()
    }

    fn offset(&self, part: u8) -> Offset {
        let range = self.model.end - self.model.start;
        self.model.start + range * Offset::from(part) / 255
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Append { records, size, generation_step, sequence } => {
                self.generation += generation_step;
                let batch = if sequence {
                    let batch = numbered(3, 0, self.sequence, records);
                    self.sequence += i32::try_from(records).unwrap();
                    batch
                } else {
                    batch(records, size, self.model.end % 50)
                };
                let at = generation(self.generation);
                let appended = self.log().append(&batch, at, NOW).unwrap();
                assert_eq!(appended.base_offset, self.model.end);
                self.model.generations.insert(appended.base_offset, self.generation);
                if sequence {
                    self.model.sequences.insert(appended.base_offset, self.sequence - 1);
                }
                self.model.batches.push((appended.base_offset, appended.end));
                self.model.end = appended.end;
            }
            Op::Flush => {
                flush(self.log());
                self.row.synced = self.log().synced();
                self.row.mark = self.row.synced;
                assert_eq!(self.row.synced, self.model.end);
            }
            Op::Read { from, max, limit } => self.read(self.offset(from), max, self.offset(limit)),
            Op::Restart => {
                let log = self.log.take().unwrap();
                let recovered = close(log);
                self.row = Recovered { clean: true, ..recovered };
                let disk = self.disk.crash(Crash::LoseUnsynced);
                let (report, producers) = self.open(disk);
                assert_eq!(report, LoadReport::default());
                assert_eq!(self.log().end(), self.model.end);
                let _ = producers;
            }
            Op::Crash(seed) => {
                let disk = self.disk.crash(Crash::Random(seed));
                self.recover(disk);
            }
            Op::KillOnly => {
                let disk = self.disk.crash(Crash::KeepAll);
                let end = self.model.end;
                self.recover(disk);
                assert_eq!(self.model.end, end, "the page cache had everything");
            }
            Op::Retain { bytes } => {
                let mark = self.row.mark;
                let config = LogConfig { retention_bytes: Some(bytes), ..small() };
                self.log().set_config(config);
                let mut retired = self.log().retain(mark, NOW).unwrap();
                self.log().set_config(small());
                assert!(retired.start <= mark.max(self.model.start));
                self.started_at(retired.start);
                self.row.log_start = retired.start;
                retired.hide().unwrap();
                retired.remove().unwrap();
            }
            Op::Advance { part } => {
                let to = self.offset(part).min(self.row.mark).max(self.model.start);
                self.log().advance_start(to).unwrap();
                self.started_at(to);
                self.row.log_start = to;
            }
            Op::Truncate { part } => {
                let to = self.offset(part);
                let before = self.row;
                self.row.synced = self.row.synced.min(to);
                self.row.mark = self.row.mark.min(to);
                let whole = self.model.at_or_before(to);
                let start = self.model.start;
                let outcome = self.log().truncate(to, NOW);
                if whole < start {
                    // The batch that the log start lies inside of cannot go.
                    assert!(matches!(outcome, Err(StorageError::OutOfRange { .. })));
                    self.row = before;
                    return;
                }
                let end = outcome.unwrap();
                assert_eq!(end, whole, "cut at {to}");
                self.model.cut(end);
                self.row.synced = self.row.synced.min(end);
                self.row.mark = self.row.mark.min(end);
                assert!(self.model.start <= end);
            }
            Op::Roll => {
                let end = self.log().end();
                self.log().roll(end, NOW).unwrap();
            }
            Op::Full => {
                self.disk.set_capacity(Some(self.disk.used() + 70));
                let at = generation(self.generation);
                let refused = self.log().append(&batch(3, 100, 1), at, NOW);
                assert!(matches!(refused, Err(StorageError::Full { .. })));
                self.disk.set_capacity(None);
            }
        }
        self.check();
    }

    fn started_at(&mut self, start: Offset) {
        self.model.start = self.model.start.max(start);
        let start = self.model.start;
        self.model.batches.retain(|(_, next)| *next > start);
    }

    fn open(&mut self, disk: MemDisk) -> (LoadReport, usize) {
        self.log = None;
        self.disk = disk;
        let limits = Limits { tail_bytes: self.tail, open_files: 8, ..Limits::default() };
        let opened = Log::open(&limited(&self.disk, limits), partition(), small(), self.row, NOW);
        let opened = match opened {
            Err(StorageError::Damaged(damaged)) if !damaged.promised => {
                // What a power loss may leave; the owner gives the copy a new identity.
                let row = Recovered { cut_ambiguous: true, ..self.row };
                Log::open(&limited(&self.disk, limits), partition(), small(), row, NOW)
            }
            other => other,
        };
        let (log, report) = opened.unwrap();
        let known = log.producers().len();
        self.log = Some(log);
        self.row.clean = false;
        (report, known)
    }

    fn recover(&mut self, disk: MemDisk) {
        self.row.clean = false;
        self.open(disk);
        let end = self.log().end();
        assert!(end >= self.row.synced, "{end} of {}", self.row.synced);
        assert!(end <= self.model.end);
        let whole = end == self.model.start || self.model.batches.iter().any(|(_, next)| *next == end);
        assert!(whole, "the end {end} is no batch's");
        self.model.cut(end);
        flush(self.log());
        self.row.synced = self.log().synced();
        self.row.mark = self.row.synced;
        // Sequences of what was lost are free again.
        let next = self.log().producers().describe().first().map_or(0, |known| known.last_sequence + 1);
        self.sequence = next;
        self.generation =
            self.generation.max(self.log().generations().latest().map_or(1, |(latest, _)| latest.number()));
    }

    fn read(&mut self, from: Offset, max: usize, limit: Offset) {
        let limit = limit.max(from);
        let reader = self.log().reader();
        let found = reader.read(from, max, limit, true).unwrap();
        let wanted = self.model.visible(from, limit);
        let got = ranges(&found);
        assert_eq!(got, wanted[..got.len()], "from {from} below {limit}");
        if !wanted.is_empty() {
            assert!(!got.is_empty(), "nothing from {from} below {limit}");
            assert!(got.len() == 1 || found.bytes <= max);
        }
    }

    fn check(&mut self) {
        let (start, end) = (self.model.start, self.model.end);
        let wanted = self.model.visible(start, end);
        let log = self.log();
        assert_eq!((log.start(), log.end()), (start, end));
        let reader = log.reader();
        assert_eq!((reader.start(), reader.end()), (start, end));
        assert_eq!(everything(&reader), wanted);
        let known = self.log().producers().describe().first().map(|known| known.last_sequence);
        let wanted_sequence = self.model.sequences.last_key_value().map(|(_, last)| *last);
        assert_eq!(known, wanted_sequence, "last sequence");
        for (base, _) in &wanted {
            let known = reader.generation_at((*base).max(start));
            let number = self.model.generations[base];
            assert_eq!(known, Some(generation(number)), "at {base}, log start {start}");
        }
        let open_files = self.disk.counters().open_now;
        assert!(open_files <= 8 + 4 * 60, "{open_files}");
    }
}

proptest! {
    #[test]
    fn any_history_reads_back(ops in prop::collection::vec(op(), 1..60), tail in prop_oneof![Just(0), Just(1 << 20), Just(6_000)]) {
        let mut world = World::new(tail);
        for op in ops {
            world.step(op);
        }
    }
}

/// One way to harm a file: where (as a part of its length), and how.
#[derive(Clone, Debug)]
enum Harm {
    Flip(u16, u8),
    Cut(u16),
    Zero(u16, u16),
    Append(Vec<u8>),
    Remove,
    Copy(u8),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (any::<u16>(), 1..=255_u8).prop_map(|(at, mask)| Harm::Flip(at, mask)),
        2 => any::<u16>().prop_map(Harm::Cut),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(from, to)| Harm::Zero(from, to)),
        1 => prop::collection::vec(any::<u8>(), 1..200).prop_map(Harm::Append),
        1 => Just(Harm::Remove),
        1 => any::<u8>().prop_map(Harm::Copy),
    ]
}

fn part(len: usize, part: u16) -> usize {
    len * usize::from(part) / 65_536
}

proptest! {
    /// Whatever stands in the files: no panic, and nothing is served whose checksum is wrong.
    #[test]
    fn harmed_files_never_lie(
        harms in prop::collection::vec((any::<u8>(), harm()), 1..5),
        clean in any::<bool>(),
        promised in 0..30_i64,
        cut_ambiguous in any::<bool>(),
    ) {
        use crate::disk::Disk;

        let disk = MemDisk::new();
        let mut log = create(&disk, small());
        for at in 0..30_i64 {
            let number = u32::try_from(1 + at / 9).unwrap();
            log.append(&batch(1, 250, at * 7 % 30), generation(number), NOW).unwrap();
        }
        close(log);
        let mut names: Vec<_> = disk.read_dir(&folder()).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        for (which, harm) in harms {
            let path = folder().join(&names[usize::from(which) % names.len()]);
            let Ok(mut content) = disk.content(&path) else { continue };
            let len = content.len();
            match harm {
                Harm::Flip(at, mask) if len > 0 => content[part(len, at)] ^= mask,
                Harm::Flip(..) => {}
                Harm::Cut(at) => content.truncate(part(len, at)),
                Harm::Zero(from, to) => {
                    let (from, to) = (part(len, from.min(to)), part(len, from.max(to)));
                    content[from..to].fill(0);
                }
                Harm::Append(more) => content.extend(more),
                Harm::Remove => {
                    disk.remove_file(&path).unwrap();
                    continue;
                }
                Harm::Copy(other) => {
                    let other = folder().join(&names[usize::from(other) % names.len()]);
                    let Ok(other) = disk.content(&other) else { continue };
                    content = other;
                }
            }
            disk.put(&path, &content).unwrap();
        }
        let row = Recovered { clean, mark: promised, synced: promised, cut_ambiguous, ..Recovered::default() };
        let Ok((mut log, _)) = try_open(&disk, small(), row) else { return Ok(()) };
        let reader = log.reader();
        prop_assert!(reader.end() >= promised);
        // Base offsets are outside of the checksum, so a harmed one may claim any end.
        for from in (reader.start()..reader.end()).take(60) {
            if let Ok(read) = reader.read(from, 900, Offset::MAX, true) {
                ranges(&read);
            }
            if from % 5 == 0 {
                let _ = reader.offset_for_timestamp(from, Offset::MAX);
            }
        }
        let _ = reader.max_timestamp(Offset::MAX);
        let _ = log.retain(promised, NOW);
        let _ = log.append(&batch(1, 10, 5), generation(9), NOW);
        let _ = log.truncate(log.start().max(promised), NOW);
    }
}
