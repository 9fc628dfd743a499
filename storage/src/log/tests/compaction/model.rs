//! Random histories with compaction, against a model that keeps every record.

use proptest::prelude::*;

use super::transactions::committed;
use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// Records: (key, size of the value or none for a tombstone), producer, codec.
    Produce(Vec<(u8, Option<u8>)>, Option<u8>, u8),
    /// Records within the producer's transaction.
    Transact(u8, Vec<(u8, Option<u8>)>),
    /// The end of his transaction.
    End(u8, bool),
    Roll,
    /// The mark moves to the end of what is flushed.
    Flush,
    /// Time passes, and a round is made with room for so many keys; the disturbance comes at that step.
    Round(u16, u8, Option<(u8, Disturb)>),
    /// Cut somewhere above the mark.
    Cut(u8),
    Advance(u8),
    Restart(Option<u64>),
    Generation,
}

#[derive(Clone, Copy, Debug)]
enum Disturb {
    Append,
    Advance,
    Cut,
}

fn some_records() -> impl Strategy<Value = Vec<(u8, Option<u8>)>> {
    let record = (0..12_u8, prop_oneof![3 => (0..200_u8).prop_map(Some), 1 => Just(None)]);
    prop::collection::vec(record, 1..5)
}

fn op() -> impl Strategy<Value = Op> {
    let disturb = prop_oneof![Just(Disturb::Append), Just(Disturb::Advance), Just(Disturb::Cut)];
    prop_oneof![
        8 => (some_records(), prop::option::of(1..4_u8), 0..5_u8).prop_map(|(r, p, c)| Op::Produce(r, p, c)),
        4 => (4..8_u8, some_records()).prop_map(|(p, r)| Op::Transact(p, r)),
        4 => (4..8_u8, any::<bool>()).prop_map(|(p, commit)| Op::End(p, commit)),
        4 => Just(Op::Roll),
        4 => Just(Op::Flush),
        6 => (0..700_u16, prop_oneof![Just(255_u8), 2..9_u8], prop::option::of((0..9_u8, disturb)))
            .prop_map(|(time, keys, disturb)| Op::Round(time, keys, disturb)),
        1 => any::<u8>().prop_map(Op::Cut),
        1 => any::<u8>().prop_map(Op::Advance),
        2 => prop::option::of(any::<u64>()).prop_map(Op::Restart),
        1 => Just(Op::Generation),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Plain,
    Open(i64),
    Committed,
    Aborted,
}

#[derive(Clone, Debug)]
struct Written {
    kept: Kept,
    time: i64,
    fate: Fate,
    /// The offset behind its batch.
    next: Offset,
    generation: u32,
}

struct World {
    disk: MemDisk,
    log: Option<Log<MemDisk>>,
    written: Vec<Written>,
    start: Offset,
    end: Offset,
    mark: Offset,
    now: i64,
    generation: u32,
    sequences: BTreeMap<i64, i32>,
    /// How far rounds have been: the log may forget that in a crash.
    cleaned: Offset,
    /// Ends of batches.
    bounds: Vec<Offset>,
    /// Markers: offset, producer and whether it committed, and the records that it decided.
    markers: Vec<(Offset, Vec<(Offset, i64)>)>,
}

impl World {
    fn new() -> World {
        let disk = MemDisk::new();
        crate::disk::Disk::create_dir(&disk, Path::new("/data")).unwrap();
        crate::disk::Disk::sync_dir(&disk, Path::new("/")).unwrap();
        let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
        flush(&mut log);
        World {
            disk,
            log: Some(log),
            written: Vec::new(),
            start: 0,
            end: 0,
            mark: 0,
            now: 0,
            generation: 1,
            sequences: BTreeMap::new(),
            cleaned: 0,
            bounds: vec![0],
            markers: Vec::new(),
        }
    }

    fn log(&mut self) -> &mut Log<MemDisk> {
        self.log.as_mut().unwrap()
    }

    fn append(&mut self, batch: &CheckedBatch) -> Appended {
        let (number, now) = (self.generation, at(self.now));
        let appended = self.log().append(batch, generation(number), now).unwrap();
        self.end = appended.end;
        self.bounds.push(appended.end);
        appended
    }

    fn produce(&mut self, records: &[(u8, Option<u8>)], builder: BatchBuilder, fate: Fate) {
        let mut builder = builder;
        let mut rows = Vec::new();
        for (key, value) in records {
            let time = 1000 + (self.end * 31 + i64::from(*key) * 17) % 200;
            let key = format!("k{key}");
            let value = value.map(|size| format!("{} {}", self.end, "x".repeat(usize::from(size))));
            builder.push(time, Some(key.as_bytes()), value.as_deref().map(str::as_bytes));
            rows.push((key, value, time));
        }
        let appended = self.append(&builder.build().unwrap());
        for (at, (key, value, time)) in rows.into_iter().enumerate() {
            let kept = (appended.base_offset + at as i64, Some(key), value);
            let (next, generation) = (appended.end, self.generation);
            self.written.push(Written { kept, time, fate, next, generation });
        }
    }

    fn sequence(&mut self, producer: i64, records: usize) -> i32 {
        let next = self.sequences.entry(producer).or_default();
        let first = *next;
        *next += i32::try_from(records).unwrap();
        first
    }

    fn cut(&mut self, to: Offset) {
        self.written.retain(|written| written.next <= to);
        self.bounds.retain(|bound| *bound <= to);
        self.end = to;
        // Transactions whose marker went are open again.
        while let Some((_, decided)) = self.markers.pop_if(|(offset, _)| *offset >= to) {
            for (offset, producer) in decided {
                for written in self.written.iter_mut().filter(|written| written.kept.0 == offset) {
                    written.fate = Fate::Open(producer);
                }
            }
        }
        let described = self.log().producers().describe();
        self.sequences = described.iter().map(|known| (known.producer_id, known.last_sequence + 1)).collect();
    }

    fn disturb(&mut self, how: Disturb) {
        match how {
            Disturb::Append => {
                self.produce(&[(3, Some(9))], BatchBuilder::new(), Fate::Plain);
            }
            Disturb::Advance => self.advance(99),
            Disturb::Cut => self.truncate(99),
        }
    }

    fn advance(&mut self, part: u8) {
        let to = self.start + (self.mark - self.start) * i64::from(part) / 256;
        self.log().advance_start(to).unwrap();
        self.start = self.start.max(to);
    }

    fn truncate(&mut self, part: u8) {
        let to = self.mark + (self.end - self.mark) * i64::from(part) / 256;
        let to = self.bounds.iter().rev().copied().find(|bound| *bound <= to).unwrap_or(0);
        if to >= self.end || to < self.mark {
            return;
        }
        let now = at(self.now);
        assert_eq!(self.log().truncate(to, now).unwrap(), to);
        self.cut(to);
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Produce(records, producer, codec) => {
                let codec = Codec::ALL[usize::from(codec)];
                let mut builder = BatchBuilder::new().codec(codec, codec.default_level());
                if let Some(producer) = producer.map(i64::from) {
                    let sequence = self.sequence(producer, records.len());
                    builder = builder.producer(producer, 0, sequence);
                }
                self.produce(&records, builder, Fate::Plain);
            }
            Op::Transact(producer, records) => {
                let producer = i64::from(producer);
                let sequence = self.sequence(producer, records.len());
                let builder = BatchBuilder::new().producer(producer, 0, sequence).transactional();
                self.produce(&records, builder, Fate::Open(producer));
            }
            Op::End(producer, commit) => {
                let producer = i64::from(producer);
                let end = if commit { TransactionEnd::Commit } else { TransactionEnd::Abort };
                let offset = self.append(&marker(producer, end)).base_offset;
                let mut decided = Vec::new();
                for written in self.written.iter_mut().filter(|w| w.fate == Fate::Open(producer)) {
                    written.fate = if commit { Fate::Committed } else { Fate::Aborted };
                    decided.push((written.kept.0, producer));
                }
                self.markers.push((offset, decided));
            }
            Op::Roll => {
                let (end, now) = (self.end, at(self.now));
                self.log().roll(end, now).unwrap();
            }
            Op::Flush => {
                flush(self.log());
                self.mark = self.log().synced();
            }
            Op::Round(time, keys, disturb) => self.round(time, keys, disturb),
            Op::Cut(part) => self.truncate(part),
            Op::Advance(part) => self.advance(part),
            Op::Restart(crash) => self.restart(crash),
            Op::Generation => self.generation += 1,
        }
        self.check();
    }

    fn round(&mut self, time: u16, keys: u8, disturb: Option<(u8, Disturb)>) {
        self.now += i64::from(time);
        let now = at(self.now);
        let mark = self.mark;
        let Some(mut plan) = self.log().compaction_round(mark, mark) else { return };
        self.cleaned = self.cleaned.max(plan.until);
        if !plan.assess(now).unwrap().is_worth_it() {
            return;
        }
        let bytes = if keys == 255 { 1 << 20 } else { usize::from(keys) * 24 };
        let mut map = OffsetMap::new(bytes, 0.9);
        let mut steps = 0;
        let mut disturbed = |world: &mut World| {
            if disturb.is_some_and(|(step, _)| step == steps) {
                world.disturb(disturb.unwrap().1);
            }
            steps += 1;
        };
        disturbed(self);
        let mut round = match plan.begin(&mut map, now, 100, &mut |_| true) {
            Ok(round) => round,
            Err(CompactionError::Changed | CompactionError::NoMemory) => return,
            Err(error) => panic!("{error}"),
        };
        loop {
            let mut cleaned = match round.next_group(&mut |_| true) {
                Ok(Some(cleaned)) => cleaned,
                Ok(None) => break,
                Err(CompactionError::Changed) => return,
                Err(error) => panic!("{error}"),
            };
            disturbed(self);
            if !self.log().claim(&cleaned) {
                cleaned.discard();
                return;
            }
            disturbed(self);
            match cleaned.commit() {
                Ok(()) => {}
                Err(CompactionError::Changed) => return self.log().unclaim(),
                Err(error) => panic!("{error}"),
            }
            disturbed(self);
            let Some(replaced) = self.log().swap(cleaned).unwrap() else { return };
            replaced.remove().unwrap();
        }
        let summary = round.summary();
        if let Some(content) = self.log().compacted(&summary) {
            self.log().reader().note_compaction(&content).unwrap();
        }
    }

    fn restart(&mut self, crash: Option<u64>) {
        let log = self.log.take().unwrap();
        let row = match crash {
            None => Recovered { mark: self.mark, ..close(log) },
            Some(seed) => {
                let row = Recovered { mark: self.mark, cut_ambiguous: true, ..stopped(&log) };
                drop(log);
                self.disk = self.disk.crash(Crash::Random(seed));
                row
            }
        };
        let (log, _) = open(&self.disk, compacted(), row);
        let end = log.end();
        self.log = Some(log);
        assert!(end >= row.synced);
        self.cut(end);
        flush(self.log());
        self.mark = self.log().synced();
    }

    fn check(&mut self) {
        let (start, end) = (self.start, self.end);
        let log = self.log.as_ref().unwrap();
        assert_eq!((log.start(), log.end()), (start, end));
        let found = records(log);
        let model: BTreeMap<Offset, &Written> = self.written.iter().map(|w| (w.kept.0, w)).collect();
        // No offset changes, nothing is made up, order is kept.
        assert!(found.is_sorted_by_key(|record| record.0));
        for record in &found {
            assert_eq!(model.get(&record.0).map(|written| &written.kept), Some(record));
        }
        // What no round has been through is there.
        let there: std::collections::BTreeSet<Offset> = found.iter().map(|record| record.0).collect();
        let stable = log.producers().first_open_transaction().unwrap_or(end);
        let from = self.cleaned.max(start);
        for offset in model.range(from..).map(|(offset, _)| offset) {
            assert!(there.contains(offset) || model[offset].fate == Fate::Aborted, "{offset} is lost");
        }
        // Consumers of committed records come to the same end.
        let mut wanted = BTreeMap::new();
        for written in
            self.written.iter().filter(|written| written.kept.0 >= start && written.kept.0 < stable)
        {
            if matches!(written.fate, Fate::Plain | Fate::Committed) {
                wanted.insert(written.kept.1.clone(), written.kept.2.clone());
            }
        }
        let mut seen = BTreeMap::new();
        for (offset, key, value) in committed(log) {
            if offset >= start {
                assert!(matches!(model[&offset].fate, Fate::Plain | Fate::Committed), "{offset} was aborted");
                seen.insert(key, value);
            }
        }
        wanted.retain(|_, value| value.is_some());
        seen.retain(|_, value| value.is_some());
        assert_eq!(seen, wanted);
        self.check_lookups(log, &found);
        for written in self.written.iter().filter(|written| written.kept.0 >= start) {
            let known = log.generations().generation_at(written.kept.0);
            assert_eq!(known, Some(generation(written.generation)));
        }
        let known: BTreeMap<i64, i32> = log
            .producers()
            .describe()
            .iter()
            .filter(|known| known.last_sequence >= 0)
            .map(|known| (known.producer_id, known.last_sequence + 1))
            .collect();
        let mut sequences = self.sequences.clone();
        sequences.retain(|_, next| *next > 0);
        assert_eq!(known, sequences);
        check_files(&self.disk, log);
    }

    fn check_lookups(&self, log: &Log<MemDisk>, found: &[Kept]) {
        let reader = log.reader();
        for from in (self.start..self.end).step_by(5) {
            let read = reader.read(from, 1, Offset::MAX, true).unwrap();
            assert!(read.next > from, "stuck at {from}");
        }
        let times: Vec<(Offset, i64)> = found
            .iter()
            .filter(|record| record.0 >= self.start)
            .map(|record| (record.0, self.written.iter().find(|w| w.kept.0 == record.0).unwrap().time))
            .collect();
        for time in [0, 1040, 1100, 1160, 1199] {
            let wanted = times.iter().find(|(_, at)| *at >= time).copied();
            // Markers have a time of their own, which is below all others here.
            let answer = reader.offset_for_timestamp(time.max(601), Offset::MAX).unwrap();
            assert_eq!(answer.map(|found| (found.offset, found.timestamp)), wanted, "since {time}");
        }
    }
}

/// An aborted transaction began in the first segment and goes on in the second; the log start moves beyond the first while the
/// round begins, so that nothing is told of that one.
#[test]
fn a_transaction_from_below_a_log_start_that_moved_during_the_round_stays_aborted() {
    let mut world = World::new();
    let records = |count: u8| (0..count).map(|key| (key, Some(100 + key))).collect::<Vec<_>>();
    for op in [
        Op::Transact(4, records(1)),
        Op::Produce(records(10), None, 0),
        Op::Roll,
        Op::Produce(records(1), None, 0),
        Op::Transact(4, records(3)),
        Op::End(4, false),
        Op::Flush,
        Op::Roll,
        Op::Produce(records(1), None, 0),
        Op::Flush,
        Op::Advance(150),
        Op::Round(291, 255, Some((0, Disturb::Advance))),
    ] {
        world.step(op);
    }
    assert!(world.start > 11 && world.start < 12 + 3, "{}", world.start);
}

proptest! {
    // More with PROPTEST_CASES in the environment.
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").map_or(64, |cases| cases.parse().unwrap()), ..ProptestConfig::default() })]
    #[test]
    fn any_history_with_rounds_reads_as_if_nothing_had_gone(ops in prop::collection::vec(op(), 1..70)) {
        let mut world = World::new();
        for op in ops {
            world.step(op);
        }
    }
}
