//! What writers were told, compared with what is found after a crash at any moment: every state that
//! [`felix_storage::disk::mem::legal`] allows, or a sample of them, opened as a broker opens its copies.

use felix_protocol::batch::PATCH_BYTES;
use felix_storage::disk::mem::legal::Effort;

use super::*;

/// A promise, and the number of things asked of the disk before it was given.
struct Told {
    from: usize,
    /// Everything below was acknowledged, or shown to consumers.
    end: Offset,
}

struct Story {
    world: World,
    copy: Box<TestCopy>,
    written: Vec<CheckedBatch>,
    told: Vec<Told>,
}

impl Story {
    fn new(config: PartitionConfig) -> Story {
        let mut world = World::new();
        let copy = world.leading(config);
        let row = copy.row();
        world.opener.replicas.commit(world.opener.replicas.stage(partition(), row)).unwrap();
        world.disk.record();
        Story { world, copy, written: Vec::new(), told: Vec::new() }
    }

    fn write(&mut self, records: usize, acks: Acks) {
        let batch = batch(records);
        self.written.push(batch.clone());
        self.world.append(&mut self.copy, "writer", append(batch, acks));
        self.listen(acks == Acks::None);
    }

    fn flush(&mut self) {
        while self.world.flush(&mut self.copy) {}
        self.listen(false);
    }

    fn note_row(&mut self) {
        if let Some(row) = self.copy.take_changed_row() {
            let replicas = &self.world.opener.replicas;
            replicas.commit(replicas.stage(partition(), row)).unwrap();
        }
    }

    /// Takes in what was answered; a writer that asked for no word was promised nothing.
    fn listen(&mut self, without_word: bool) {
        let answers = self.world.answers();
        let answered = answers.iter().map(|(_, answer)| answer.as_ref().unwrap().last_offset + 1).max();
        let answered = answered.filter(|_| !without_word).unwrap_or(0);
        let end = answered.max(self.copy.published().mark());
        self.told.push(Told { from: self.world.disk.recorded(), end });
    }

    fn promised(&self, at: usize) -> Offset {
        self.told.iter().filter(|told| told.from <= at).map(|told| told.end).max().unwrap_or(0)
    }
}

/// Opens what a crash left in another boot, and says how much of the story is in it and whether the copy still
/// vouches for itself.
fn found(story: &Story, disk: &MemDisk, config: &PartitionConfig, named: LogId) -> (Offset, bool) {
    let world = World::on(disk.clone(), 2);
    let request = |named, number, unclean| OpenRequest {
        partition: partition(),
        generation: generation(number),
        named: Some(named),
        unclean,
        config: Arc::new(config.clone()),
    };
    let mut opened: Outcome<_, _, &'static str> =
        world.opener.open(&[request(named, 2, false)], &world.lease).pop().unwrap();
    let mut vouches = true;
    let mut tries = 0;
    while let Outcome::Declined { reason, current, .. } = &opened {
        assert_eq!((*reason, tries < 2), (Decline::Doubt, true));
        (vouches, tries) = (false, tries + 1);
        opened =
            world.opener.open(&[request(current.unwrap(), 2 + tries, true)], &world.lease).pop().unwrap();
    }
    let Outcome::Ready(copy, _) = opened else { panic!("it does not open") };
    let reader = copy.reader();
    let mut at = 0;
    for batch in &story.written {
        if at == reader.end() {
            break;
        }
        let read = reader.read(at, batch.bytes().len(), Offset::MAX, true).unwrap();
        assert_eq!(read.slices.concat()[PATCH_BYTES..], batch.bytes()[PATCH_BYTES..], "at {at}");
        at = read.next;
    }
    assert_eq!(at, reader.end(), "more than was written");
    assert!(copy.published().mark() <= at);
    (at, vouches)
}

/// Tells the story and crashes it everywhere; `counted` says whether the policy counts bytes that are not flushed.
fn crash_everywhere(config: PartitionConfig, tell: impl Fn(&mut Story)) {
    let counted = config.flush.counts_unsynced();
    let mut story = Story::new(config.clone());
    tell(&mut story);
    let named = story.copy.own().log;
    let trace = story.world.disk.take_trace().unwrap();
    let effort = Effort { all_of: 4, sample: 8, singles: true };
    let mut replay = trace.replay();
    let (mut states, mut lost) = (0, 0);
    loop {
        for disk in replay.states(effort) {
            let promised = story.promised(replay.at());
            let (end, vouches) = found(&story, &disk, &config, named);
            if counted {
                // The page cache's promise: whoever breaks it does not go on under the old name.
                assert!(end >= promised || !vouches, "crash at {}: {end} of {promised}", replay.at());
                lost += usize::from(end < promised);
            } else {
                assert!(end >= promised, "crash at {}: {end} of {promised}", replay.at());
            }
            states += 1;
        }
        if !replay.advance() {
            break;
        }
    }
    assert!(states >= 300, "{states} states");
    assert_eq!(lost > 0, counted, "bytes that are not flushed are lost in some crash");
}

fn small_segments(flush: FlushPolicy) -> PartitionConfig {
    let log = LogConfig { segment_bytes: 1_500, ..LogConfig::default() };
    PartitionConfig { log, flush, ..PartitionConfig::default() }
}

#[test]
fn whoever_was_answered_is_found_again_whatever_the_crash_leaves() {
    for acks in [Acks::Leader, Acks::All] {
        crash_everywhere(small_segments(FlushPolicy::default()), |story| {
            for round in 0..4 {
                story.write(3, acks);
                story.write(1, Acks::None);
                story.write(6, acks);
                story.flush();
                if round % 2 == 0 {
                    story.note_row();
                }
            }
        });
    }
}

#[test]
fn who_counts_unflushed_bytes_does_not_vouch_for_them_after_a_power_loss() {
    let flush = FlushPolicy { messages: i64::MAX, within: None };
    crash_everywhere(small_segments(flush), |story| {
        for _ in 0..5 {
            story.write(3, Acks::All);
            story.write(4, Acks::Leader);
            story.flush();
            story.note_row();
        }
    });
}
