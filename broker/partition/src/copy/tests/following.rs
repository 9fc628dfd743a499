//! Two brokers' copies of one partition: what one ships, the other takes.

use std::collections::BTreeMap;

use felix_protocol::batch::BatchBuilder;
use felix_protocol::peer::ship::{Part, Said, TenureHeader};
use felix_replication::cursor::{self, FrameId};
use felix_replication::follower::{Frame, Restart};

use super::*;
use crate::following::Shipped;
use crate::shipping::Restarting;

/// A broker with its copy.
pub(super) struct Side {
    pub(super) world: World,
    pub(super) copy: Box<TestCopy>,
}

impl Side {
    pub(super) fn new(broker: i32) -> Side {
        Side::that_needs(broker, 1)
    }

    /// One whose word alone is not enough where `need` is more than one.
    fn that_needs(broker: i32, need: usize) -> Side {
        Side::configured(broker, PartitionConfig { need, ..PartitionConfig::default() })
    }

    pub(super) fn configured(broker: i32, config: PartitionConfig) -> Side {
        let mut world = World::new();
        world.opener.broker = BrokerId(broker);
        let wanted = [(partition(), Arc::new(config))];
        let Outcome::Ready(copy, _) = world.opener.follow(&wanted, &world.lease, false).pop().unwrap() else {
            panic!("not opened")
        };
        Side { world, copy }
    }

    /// Leads at that generation, with the other one connected.
    pub(super) fn lead(&mut self, number: u32, other: i32) {
        let World { opener, ports, lease, .. } = &mut self.world;
        let accepted = opener.replicas.stage_with(&partition(), |row| row.accepted = generation(number));
        opener.replicas.commit(accepted).unwrap();
        self.copy.accepted(generation(number), lease.clone(), ports);
        let replicas = [opener.broker, BrokerId(other)].into();
        self.copy.lead(KeyState { replicas, generation: generation(number), ..key(5, Last::Never) }, ports);
        self.world.land_opening(&mut self.copy);
        self.copy.ship_to_replicas(|broker| broker == BrokerId(other), &mut self.world.ports);
    }

    pub(super) fn write(&mut self, records: usize) {
        self.world.append(&mut self.copy, "writer", append(batch(records), Acks::Leader));
        self.world.flush(&mut self.copy);
    }

    pub(super) fn all(&self) -> Vec<u8> {
        let (start, end) = self.copy.bounds();
        if end == start {
            return Vec::new();
        }
        self.copy.reader().read(start, 1 << 20, end, true).unwrap().slices.concat()
    }

    /// The leader's log begins there from now on.
    pub(super) fn begin_at(&mut self, start: Offset) {
        self.copy.delete_records(DeleteTo::Offset(start), &mut self.world.ports).unwrap();
    }

    pub(super) fn reconnect(&mut self, other: i32) {
        self.copy.connected(BrokerId(other), false, &mut self.world.ports);
        self.world.ports.shipments.clear();
        self.copy.connected(BrokerId(other), true, &mut self.world.ports);
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.world.clock.advance(time);
        self.copy.tick(&mut self.world.ports);
    }

    /// Does what was asked of whoever runs the copy: rows, flushes, acknowledgements that need none.
    pub(super) fn run(&mut self) {
        for (row, noted) in std::mem::take(&mut self.world.ports.notes) {
            let replicas = &self.world.opener.replicas;
            replicas.commit(replicas.stage(partition(), row)).unwrap();
            self.copy.row_noted(noted, true, &mut self.world.ports);
        }
        self.copy.settle(&mut self.world.ports);
        self.world.flush(&mut self.copy);
    }
}

/// Carries frames and answers until nobody has anything to say. Returns what the follower said.
pub(super) fn carry(leader: &mut Side, follower: &mut Side) -> Vec<Said> {
    let (mut said, mut frames) = (Vec::new(), BTreeMap::<Token, FrameId>::new());
    for round in 0..100_u64 {
        leader.run();
        let shipments = std::mem::take(&mut leader.world.ports.shipments);
        if shipments.is_empty()
            && follower.world.ports.notes.is_empty()
            && follower.world.ports.told.is_empty()
        {
            return said;
        }
        let (to, generation) = (follower.world.opener.broker, leader.copy.published().generation());
        for (at, (broker, Shipment { frame, mut part, most, restart, .. })) in (0..).zip(shipments) {
            assert_eq!(broker, to);
            let token = Token(round * 1000 + at);
            frames.insert(token, frame);
            if let Some(Restarting { restart, rebuild }) = restart {
                let (generation, log) = (restart.generation, restart.log);
                let (base, log_start) = (restart.base, restart.log_start);
                let restart = Restart { token, generation, log, base, log_start, rebuild };
                follower.copy.restart(restart, &mut follower.world.ports);
                continue;
            }
            if let Some(most) = most {
                let read = leader
                    .copy
                    .reader()
                    .read(part.from.max(part.log_start), most, part.log_end, true)
                    .unwrap();
                (part.next, part.records) = (read.next, vec![read.slices.concat().into()]);
                let sent = cursor::Event::Sent { frame, next: part.next, bytes: read.bytes };
                leader.copy.shipped(to, generation, sent, &mut leader.world.ports);
            }
            let mut shipped = Shipped::unpack(part).unwrap();
            shipped.frame.token = token;
            follower.copy.follow(shipped, &mut follower.world.ports);
        }
        follower.run();
        for (token, reply) in std::mem::take(&mut follower.world.ports.told) {
            said.push(reply.said);
            let answer = cursor::Event::answer(frames[&token], reply);
            leader.copy.shipped(to, generation, answer, &mut leader.world.ports);
        }
    }
    panic!("they never come to rest: {said:?}");
}

#[test]
fn what_a_leader_writes_stands_in_its_followers_log_and_so_does_its_mark() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    one.write(2);
    one.write(4);
    let said = carry(&mut one, &mut two);
    assert!(said.iter().all(|said| *said == Said::Stored), "{said:?}");
    assert_eq!(two.copy.bounds(), (0, 9));
    assert!(one.all() == two.all() && !two.all().is_empty());
    assert_eq!(two.copy.log.synced(), 9, "it was flushed before it was answered for");
    assert_eq!(two.world.opener.replicas.get(&partition()).unwrap().accepted, generation(1));
    // The mark follows with nothing to ship.
    one.world.clock.advance(Duration::from_millis(50));
    one.copy.tick(&mut one.world.ports);
    carry(&mut one, &mut two);
    assert_eq!((one.copy.published().mark(), two.copy.published().mark()), (9, 9));
    assert_eq!((two.copy.row().mark, two.copy.row().mark_generation), (9, generation(1)));
}

/// The leader's disk and the follower's way work at the same time; an acknowledgement needs both.
#[test]
fn what_is_written_is_shipped_before_the_leaders_own_flush() {
    let (mut one, mut two) = (Side::that_needs(1, 2), Side::new(2));
    one.lead(1, 2);
    carry(&mut one, &mut two);
    one.world.append(&mut one.copy, "writer", append(batch(2), Acks::Leader));
    assert_eq!(one.copy.log.durable(), 0, "no flush was even asked for yet");
    let (to, shipment) = one.world.ports.shipments.pop().unwrap();
    assert_eq!((to, shipment.part.from, shipment.part.log_end), (BrokerId(2), 0, 2));
    assert!(shipment.most.is_some() && one.world.answers().is_empty());
    one.world.flush(&mut one.copy);
    assert_eq!(one.world.answers().len(), 1);
}

#[test]
fn an_old_leaders_tail_is_cut_and_it_follows_the_new_one() {
    let (mut one, mut two) = (Side::that_needs(1, 2), Side::that_needs(2, 2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    one.write(5);
    one.world.ports.shipments.clear();
    two.lead(2, 1);
    two.write(1);
    carry(&mut two, &mut one);
    assert!(!one.copy.leads(), "a newer leader was heard of");
    assert_eq!(one.copy.bounds(), (0, 4));
    assert!(one.all() == two.all());
    assert_eq!(one.copy.log.generations().entries(), two.copy.log.generations().entries());
    assert_eq!(one.copy.standing().accepted, generation(2));
    // What it says at the older generation nobody takes.
    let frame = Frame {
        token: Token(9),
        generation: generation(1),
        log: None,
        header: None,
        mark: 0,
        log_start: 0,
        log_end: 9,
        from: 4,
        next: 4,
        before: None,
        batches: Vec::new(),
    };
    two.copy.follow(Shipped { frame, batches: Vec::new() }, &mut two.world.ports);
    let (_, reply) = two.world.ports.told.pop().unwrap();
    assert_eq!((reply.said, reply.generation), (Said::Fenced, generation(2)));
    assert!(two.copy.leads());
}

/// A new leader does not know how far its predecessor acknowledged.
#[test]
fn after_a_takeover_latest_is_unknown_until_the_mark_is_there() {
    let (mut one, mut two) = (Side::that_needs(1, 2), Side::that_needs(2, 2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    two.lead(2, 1);
    let known = |side: &Side| (side.copy.published().mark(), side.copy.published().settled());
    assert_eq!(known(&two), (0, false));
    carry(&mut two, &mut one);
    assert_eq!(known(&two), (0, false), "its own word is not enough");
    let report = two.world.ports.reports.pop().unwrap();
    let (at, answer) = (two.copy.published().generation(), ReportAnswer::Landed(Revision(7)));
    two.copy.report_answered(at, report.number, answer, &mut two.world.ports);
    assert_eq!(known(&two), (3, true));
}

#[test]
fn a_leader_that_read_of_its_end_never_speaks_for_the_next_one() {
    let (mut one, mut two) = (Side::that_needs(1, 2), Side::that_needs(2, 2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    // It reads that somebody else leads before anybody tells it to stop.
    let newer = KeyState { generation: generation(2), ..key(9, Last::Never) };
    one.copy.key_read(generation(1), Some(newer), &mut one.world.ports);
    assert!(!one.copy.leads());
    two.lead(2, 1);
    two.write(2);
    carry(&mut two, &mut one);
    assert_eq!(one.copy.standing().accepted, generation(2));
    // A follower of its own tenure comes back. A header now would be one of generation 2, which begins elsewhere.
    one.reconnect(2);
    one.wait(Duration::from_secs(2));
    assert!(one.world.ports.shipments.is_empty(), "{:?}", one.world.ports.shipments);
    assert_eq!(one.copy.followers().count(), 0);
}

#[test]
fn a_follower_that_starts_again_goes_on_where_it_was() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    let log = two.copy.own().log;
    let Side { world, copy } = two;
    drop(copy);
    let mut world = world.after(Crash::KeepAll, 1);
    world.opener.broker = BrokerId(2);
    let wanted = [(partition(), Arc::new(PartitionConfig::default()))];
    let Outcome::Ready(copy, _) = world.opener.follow(&wanted, &world.lease, false).pop().unwrap() else {
        panic!("not opened")
    };
    let mut two = Side { world, copy };
    assert_eq!((two.copy.own().log, two.copy.bounds()), (log, (0, 3)));
    one.write(2);
    one.copy.connected(BrokerId(2), false, &mut one.world.ports);
    one.world.ports.shipments.clear();
    one.copy.connected(BrokerId(2), true, &mut one.world.ports);
    carry(&mut one, &mut two);
    assert!(one.all() == two.all());
    assert_eq!(two.copy.bounds(), (0, 5));
}

#[test]
fn an_empty_copy_begins_where_its_leaders_log_does_even_inside_a_batch() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.world.ports.shipments.clear();
    for records in [3, 2, 4] {
        one.write(records);
    }
    one.begin_at(4);
    let before = two.copy.own();
    one.reconnect(2);
    let said = carry(&mut one, &mut two);
    assert_eq!(said[0], Said::Empty);
    assert_eq!(two.copy.bounds(), (3, 9), "the whole batch was shipped");
    assert!(one.all() == two.all());
    let row = two.world.opener.replicas.get(&partition()).unwrap();
    assert_ne!(row.log_id, before.log, "another copy");
    assert_eq!((row.log_id, row.log_start, row.accepted), (two.copy.own().log, 3, generation(1)));
    assert_eq!(one.world.ports.rebuilt, [false; 0], "nothing was given up, so no slot was taken");
    // The next frame that comes behind the mark brings the log start that readers would have.
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert_eq!((two.copy.bounds(), two.copy.published().mark()), ((4, 9), 9));
    // It is the same copy in the next life of its broker, and goes on.
    let log = two.copy.own().log;
    let mut two = again(two, 2);
    assert_eq!((two.copy.own().log, two.copy.bounds().1), (log, 9));
    one.write(1);
    one.reconnect(2);
    carry(&mut one, &mut two);
    assert!(one.all() == two.all());
}

/// The broker's next life, after its process was killed.
pub(super) fn again(side: Side, broker: i32) -> Side {
    after(side, broker, Crash::KeepAll)
}

pub(super) fn after(side: Side, broker: i32, crash: Crash) -> Side {
    let Side { mut world, copy } = side;
    if let Some(row) = { copy }.take_changed_row() {
        world.opener.replicas.commit(world.opener.replicas.stage(partition(), row)).unwrap();
    }
    world = world.after(crash, 1);
    world.opener.broker = BrokerId(broker);
    let wanted = [(partition(), Arc::new(PartitionConfig::default()))];
    let Outcome::Ready(copy, _) = world.opener.follow(&wanted, &world.lease, false).pop().unwrap() else {
        panic!("not opened")
    };
    Side { world, copy }
}

#[test]
fn a_copy_that_retention_passed_is_rebuilt_when_there_is_a_slot_and_not_before() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    let before = two.copy.own();
    one.copy.connected(BrokerId(2), false, &mut one.world.ports);
    for records in [2, 4] {
        one.write(records);
    }
    one.begin_at(5);
    one.reconnect(2);
    carry(&mut one, &mut two);
    assert_eq!(two.world.ports.halted, [HaltReason::NeedsBootstrap]);
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert_eq!((two.copy.own(), two.copy.bounds()), (before, (0, 3)), "no slot: the bytes are kept");
    one.world.ports.slots = true;
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert_ne!(two.copy.own(), before);
    assert_eq!(two.copy.bounds(), (5, 9));
    assert!(one.all() == two.all());
    assert_eq!(one.world.ports.rebuilt, [true], "level, and the slot is free again");
    assert!(two.world.ports.halted.is_empty(), "it goes on");
    assert_eq!(two.copy.log.synced(), 9);
    // Word that comes twice finds another copy (C12).
    let (token, log, rebuild) = (Token(7), before.log, true);
    let restart = Restart { token, generation: generation(1), log, base: 0, log_start: 0, rebuild };
    two.copy.restart(restart, &mut two.world.ports);
    assert_eq!(two.world.ports.told.pop().unwrap().1.said, Said::Refused);
    assert_eq!(two.copy.bounds(), (5, 9));
}

#[test]
fn a_slot_is_given_back_when_the_tenure_ends() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    one.copy.connected(BrokerId(2), false, &mut one.world.ports);
    one.write(2);
    one.begin_at(5);
    one.world.ports.slots = true;
    one.reconnect(2);
    // The header, its answer, and word to begin anew, which never arrives.
    let header = one.world.ports.shipments.pop().unwrap().1;
    let reply = Reply {
        generation: generation(1),
        log: two.copy.own().log,
        end: 3,
        said: Said::Halted(HaltReason::NeedsBootstrap.number()),
    };
    let answer = cursor::Event::answer(header.frame, reply);
    one.copy.shipped(BrokerId(2), generation(1), answer, &mut one.world.ports);
    assert!(one.world.ports.shipments.pop().unwrap().1.restart.is_some_and(|restart| restart.rebuild));
    one.copy.end_tenure(&mut one.world.ports);
    assert_eq!(one.world.ports.rebuilt, [false]);
}

#[test]
fn a_crash_while_a_copy_begins_anew_leaves_one_that_nobody_takes_for_the_old() {
    // How many of the rows came to be durable.
    for rows in 0..3 {
        let (mut one, mut two) = (Side::new(1), Side::new(2));
        one.lead(1, 2);
        one.write(3);
        carry(&mut one, &mut two);
        one.write(2);
        one.begin_at(5);
        one.world.ports.shipments.clear();
        let (before, token) = (two.copy.own(), Token(1));
        let (generation, log) = (generation(1), before.log);
        let restart = Restart { token, generation, log, base: 5, log_start: 5, rebuild: true };
        two.copy.restart(restart, &mut two.world.ports);
        for _ in 0..rows {
            let (row, noted) = two.world.ports.notes.pop().unwrap();
            let replicas = &two.world.opener.replicas;
            replicas.commit(replicas.stage(partition(), row)).unwrap();
            two.copy.row_noted(noted, true, &mut two.world.ports);
        }
        let Side { world, copy } = two;
        drop(copy);
        let mut world = world.after(Crash::LoseUnsynced, 2);
        world.opener.broker = BrokerId(2);
        let wanted = [(partition(), Arc::new(PartitionConfig::default()))];
        let copy = match world.opener.follow(&wanted, &world.lease, false).pop().unwrap() {
            Outcome::Ready(copy, _) => copy,
            Outcome::Declined { .. } => {
                match world.opener.follow(&wanted, &world.lease, true).pop().unwrap() {
                    Outcome::Ready(copy, _) => copy,
                    Outcome::Declined { .. } | Outcome::Stale { .. } | Outcome::Failed(_) => {
                        panic!("not opened after {rows} rows")
                    }
                }
            }
            Outcome::Stale { .. } | Outcome::Failed(_) => panic!("not opened after {rows} rows"),
        };
        assert_eq!(copy.own() == before, rows == 0, "after {rows} rows");
        assert_eq!(rows == 0, copy.bounds() == (0, 3) && copy.own() == before);
        let mut two = Side { world, copy };
        one.world.ports.slots = true;
        one.reconnect(2);
        carry(&mut one, &mut two);
        one.wait(Duration::from_secs(1));
        carry(&mut one, &mut two);
        assert_eq!(two.copy.bounds().1, 5, "after {rows} rows");
    }
}

#[test]
fn what_was_given_up_on_purpose_is_told_and_cut() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    one.wait(Duration::from_millis(50));
    carry(&mut one, &mut two);
    assert_eq!(two.copy.published().mark(), 3);
    // A third copy, without any of it, leads by an operator's word.
    for (unclean, halted, end) in [(None, 1, 3), (Some(generation(2)), 0, 1)] {
        let mut three = Side::new(3);
        three.copy.lost_at(unclean);
        three.lead(2, 2);
        three.write(1);
        three.world.ports.shipments.retain(|(_, shipment)| shipment.part.header.is_some());
        carry(&mut three, &mut two);
        assert_eq!((two.world.ports.halted.len(), two.copy.bounds().1), (halted, end), "{unclean:?}");
        two = again(two, 2);
    }
}

#[test]
fn a_follower_whose_disk_is_full_goes_on_when_there_is_room_again() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    let used = two.world.disk.used();
    two.world.disk.set_capacity(Some(used));
    one.write(2);
    one.write(4);
    let said = carry(&mut one, &mut two);
    assert!(said.contains(&Said::Retry), "{said:?}");
    assert_eq!(two.copy.bounds(), (0, 3));
    assert!(two.world.ports.halted.is_empty() && two.copy.halted().is_none());
    two.world.disk.set_capacity(None);
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert_eq!(two.copy.bounds(), (0, 9));
    assert!(one.all() == two.all());
}

#[test]
fn both_sides_know_how_far_a_follower_is_behind() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    let silence = Duration::from_secs(2);
    assert_eq!(two.copy.lag(silence), None, "it has heard of no leader");
    one.lead(1, 2);
    one.write(3);
    carry(&mut one, &mut two);
    assert_eq!((one.copy.lag(silence), two.copy.lag(silence)), (Some(0), Some(0)));
    one.write(5);
    assert_eq!(one.copy.lag(silence), Some(5));
    carry(&mut one, &mut two);
    assert_eq!((one.copy.lag(silence), two.copy.lag(silence)), (Some(0), Some(0)));
    two.world.clock.advance(Duration::from_secs(3));
    assert_eq!(two.copy.lag(silence), None, "its leader is silent");
}

/// A leader at generation 1 says so: its log ends at `next`, and of `[from, next)` only so many records are left.
pub(super) fn shipped(token: u64, from: Offset, next: Offset, records: usize) -> Shipped {
    let mut stored = Vec::new();
    if records > 0 {
        let mut builder = BatchBuilder::new().base_offset(from).generation(generation(1));
        (0..records).for_each(|_| builder.push(5, None, Some(b"value")));
        stored.push(builder.build().unwrap().bytes().clone());
    }
    let header = TenureHeader {
        begins: 0,
        base: 0,
        entries: vec![(generation(1), 0)],
        complete_from: Generation::ZERO,
        unclean_at: None,
    };
    let part = Part {
        partition: partition(),
        key_revision: 0,
        generation: generation(1),
        log: None,
        header: (from == 0).then_some(header),
        mark: next,
        log_start: 0,
        log_end: next,
        from,
        next,
        before: (from > 0).then_some(generation(1)),
        records: stored,
    };
    let mut shipped = Shipped::unpack(part).unwrap();
    shipped.frame.token = Token(token);
    shipped
}

#[test]
fn a_log_ends_where_its_leaders_does_although_compaction_left_a_hole_there_also_after_a_power_loss() {
    let mut two = Side::new(2);
    for (token, from, next, records) in [(1, 0, 10, 3), (2, 10, 20, 0), (3, 20, 30, 4)] {
        two.copy.follow(shipped(token, from, next, records), &mut two.world.ports);
        two.run();
        two.run();
        let (_, reply) = two.world.ports.told.pop().unwrap();
        assert_eq!((reply.said, reply.end), (Said::Stored, next));
        assert_eq!((two.copy.bounds(), two.copy.published().mark()), ((0, next), next));
        let (log, all) = (two.copy.own().log, two.all());
        two = after(two, 2, Crash::LoseUnsynced);
        assert_eq!((two.copy.own().log, two.copy.bounds()), (log, (0, next)), "the same copy, and all of it");
        assert!(two.all() == all);
        // What it has heard of its leader went with the process.
        if next < 30 {
            let frame = shipped(9, 0, 0, 0);
            let log_end = next;
            let frame = Frame { from: next, next, log_end, ..frame.frame };
            two.copy.follow(Shipped { frame, batches: Vec::new() }, &mut two.world.ports);
            two.run();
            assert_eq!(two.world.ports.told.pop().unwrap().1.said, Said::Stored);
        }
    }
    // Leading, it gives no offset of a hole away again (I2).
    two.lead(2, 1);
    two.write(1);
    assert_eq!(two.copy.bounds(), (0, 31));
}

#[test]
fn a_hole_that_does_not_fit_on_a_full_disk_is_asked_for_again() {
    let mut two = Side::new(2);
    two.copy.follow(shipped(1, 0, 10, 10), &mut two.world.ports);
    two.run();
    two.run();
    two.world.ports.told.clear();
    two.world.disk.set_capacity(Some(two.world.disk.used()));
    two.copy.follow(shipped(2, 10, 20, 0), &mut two.world.ports);
    assert_eq!(two.world.ports.told.pop().unwrap().1.said, Said::Retry);
    two.world.disk.set_capacity(None);
    two.copy.follow(shipped(3, 10, 20, 0), &mut two.world.ports);
    two.run();
    let (_, reply) = two.world.ports.told.pop().unwrap();
    assert_eq!((reply.said, reply.end), (Said::Stored, 20));
}
