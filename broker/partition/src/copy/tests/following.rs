//! Two brokers' copies of one partition: what one ships, the other takes.

use std::collections::BTreeMap;

use felix_protocol::batch::scan::Batches;
use felix_protocol::peer::ship::Said;
use felix_replication::cursor::{self, FrameId};
use felix_replication::follower::Frame;

use super::*;
use crate::following::{Shipped, facts};

/// A broker with its copy.
struct Side {
    world: World,
    copy: Box<TestCopy>,
}

impl Side {
    fn new(broker: i32) -> Side {
        Side::that_needs(broker, 1)
    }

    /// One whose word alone is not enough where `need` is more than one.
    fn that_needs(broker: i32, need: usize) -> Side {
        let mut world = World::new();
        world.opener.broker = BrokerId(broker);
        let config = PartitionConfig { need, ..PartitionConfig::default() };
        let wanted = [(partition(), Arc::new(config))];
        let Outcome::Ready(copy, _) = world.opener.follow(&wanted, &world.lease, false).pop().unwrap() else {
            panic!("not opened")
        };
        Side { world, copy }
    }

    /// Leads at that generation, with the other one connected.
    fn lead(&mut self, number: u32, other: i32) {
        let World { opener, ports, lease, .. } = &mut self.world;
        let accepted = opener.replicas.stage_with(&partition(), |row| row.accepted = generation(number));
        opener.replicas.commit(accepted).unwrap();
        self.copy.accepted(generation(number), lease.clone(), ports);
        let replicas = [opener.broker, BrokerId(other)].into();
        self.copy.lead(KeyState { replicas, generation: generation(number), ..key(5, Last::Never) }, ports);
        self.world.land_opening(&mut self.copy);
        self.copy.ship_to_replicas(|broker| broker == BrokerId(other), &mut self.world.ports);
    }

    fn write(&mut self, records: usize) {
        self.world.append(&mut self.copy, "writer", append(batch(records), Acks::Leader));
        self.world.flush(&mut self.copy);
    }

    fn all(&self) -> Vec<u8> {
        let end = self.copy.log.end();
        if end == 0 {
            return Vec::new();
        }
        self.copy.reader().read(0, 1 << 20, end, true).unwrap().slices.concat()
    }

    /// Does what was asked of whoever runs the copy: rows, flushes, acknowledgements that need none.
    fn run(&mut self) {
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
fn carry(leader: &mut Side, follower: &mut Side) -> Vec<Said> {
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
        for (at, (broker, Shipment { frame, mut part, most })) in (0..).zip(shipments) {
            assert_eq!(broker, to);
            if let Some(most) = most {
                let read = leader.copy.reader().read(part.from, most, part.log_end, true).unwrap();
                (part.next, part.records) = (read.next, vec![read.slices.concat().into()]);
                let sent = cursor::Event::Sent { frame, next: part.next, bytes: read.bytes };
                leader.copy.shipped(to, generation, sent, &mut leader.world.ports);
            }
            let token = Token(round * 1000 + at);
            frames.insert(token, frame);
            let batches: Vec<CheckedBatch> = part
                .records
                .into_iter()
                .flat_map(Batches::new)
                .map(|batch| CheckedBatch::check(batch.unwrap().bytes).unwrap())
                .collect();
            let frame = Frame {
                token,
                generation: part.generation,
                log: part.log,
                header: part.header,
                mark: part.mark,
                log_start: part.log_start,
                log_end: part.log_end,
                from: part.from,
                next: part.next,
                before: part.before,
                batches: batches.iter().map(|batch| facts(batch.header()).unwrap()).collect(),
            };
            follower.copy.follow(Shipped { frame, batches }, &mut follower.world.ports);
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
