//! Stories: a store is restored from a backup, and what was decided since is gone.

use std::collections::BTreeSet;

use felix_protocol::ids::Generation;
use proptest::prelude::*;

use super::*;
use crate::eligible::{Declined, Report};
use crate::producer_ids;
use crate::promotion;
use crate::state::{DeclineReason, encode};
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

const NOW: u64 = 1_796_000_000;

fn topic(world: &mut World, name: &str, replicas: &[i32]) -> PartitionId {
    let assignments = [(0, brokers(replicas))].into();
    let new = NewTopic { name: name.to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    PartitionId { topic: world.create(new).unwrap().id, index: 0 }
}

fn recover(world: &mut World, now_s: u64) -> Acknowledged {
    let (decisions, told) = acknowledge(&world.view, now_s).unwrap();
    for decision in &decisions {
        assert!(world.commit(decision));
    }
    world.settle();
    told
}

#[test]
fn no_generation_is_granted_twice_and_no_producer_id_is_handed_out_twice() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, "orders", &[1]);
    world.report(id, &Report::Opened(log(1))).unwrap();
    let backup = world.clone();
    // What is lost: tenures, and blocks of producer ids.
    for _ in 0..5 {
        world.fence(1);
        world.register(1);
        world.settle();
    }
    let (decision, lost) = producer_ids::next_block(&world.view, BrokerId(1), world.session(1)).unwrap();
    assert!(world.commit(&decision));
    let granted = world.state(id).generation;
    let mut fences = BTreeMap::from([(id, granted)]);

    let mut restored = backup.clone();
    let ahead = check_fences(&restored.view, &fences).unwrap_err();
    assert_eq!((ahead.partition, ahead.accepted), (id, granted));
    let told = recover(&mut restored, NOW);
    assert_eq!(check_fences(&restored.view, &fences), Ok(()));
    assert_eq!(told.fenced, brokers(&[1, 2, 3]), "whoever had a session there has none any more");
    assert_eq!(restored.state(id).leader, None);
    restored.register(1);
    restored.settle();
    let again = restored.state(id).generation;
    assert!(again > granted && again > told.floor, "{again}");
    let (_, block) = producer_ids::next_block(&restored.view, BrokerId(1), restored.session(1)).unwrap();
    assert!(block.start > lost.end + 1_000_000_000);

    // The same backup once more: what was granted in between is not granted again either.
    fences.insert(id, again);
    let mut twice = backup.clone();
    let second = recover(&mut twice, NOW + 60);
    assert!(second.epoch > told.epoch);
    assert_eq!(check_fences(&twice.view, &fences), Ok(()));
    twice.register(1);
    twice.settle();
    assert!(twice.state(id).generation > again);
}

#[test]
fn a_clock_that_stands_still_does_no_harm_to_the_epoch() {
    let mut world = World::with_brokers(1);
    let first = recover(&mut world, 0);
    let second = recover(&mut world, 0);
    assert!(first.epoch > 0 && second.epoch > first.epoch && second.floor > first.floor);
}

#[test]
fn whoever_decided_from_before_the_recovery_comes_too_late() {
    let mut world = World::with_brokers(2);
    let id = topic(&mut world, "orders", &[1, 2]);
    world.report(id, &Report::Opened(log(1))).unwrap();
    let pairs = BTreeSet::from([pair(2, 2)]);
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 2 }).unwrap();
    // A controller that has not heard of it promotes, from the view of before.
    world.fence(1);
    let old = world.view.clone();
    let partition = old.partition(&id).unwrap();
    let next = promotion::next(&old, &partition.state, &BTreeMap::new(), false);
    let late = promotion::decide(&old, partition, &next).unwrap();
    recover(&mut world, NOW);
    assert!(!world.commit(&late));
}

#[test]
fn what_the_backup_says_of_who_holds_everything_is_not_believed() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, "orders", &[1, 2]);
    world.report(id, &Report::Opened(log(1))).unwrap();
    let pairs = BTreeSet::from([pair(2, 2)]);
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 2 }).unwrap();
    recover(&mut world, NOW);
    // Both come back, each with a new id for the same bytes; the second was level with a later leader.
    world.register(1);
    world.settle();
    let decline = |world: &mut World, current: u128, accepted: u32, end: i64| {
        let (reason, current) = (DeclineReason::Doubt, Some(log(current)));
        let declined = Declined { reason, current, accepted: generation(accepted), end };
        world.report(id, &Report::Declined(declined)).unwrap();
    };
    assert_eq!(world.state(id).leader.unwrap().log, Some(log(1)));
    decline(&mut world, 11, 1, 500);
    assert_eq!(
        world.state(id).leader,
        None,
        "the other one may hold more: nobody is named before it has come"
    );
    world.register(2);
    world.settle();
    assert_eq!(world.state(id).leader.unwrap().log, Some(log(2)));
    decline(&mut world, 22, 4, 100);
    let state = world.state(id);
    let leader = state.leader.unwrap();
    assert_eq!(
        (leader.broker, leader.log),
        (BrokerId(2), Some(log(22))),
        "a later leader's records count more"
    );
    assert_eq!(state.unclean_at, Some(state.generation), "and that something may be lost is not hidden");
}

#[test]
fn where_the_backup_says_that_nothing_was_written_an_operator_decides() {
    let mut world = World::with_brokers(2);
    let (shared, alone) = (topic(&mut world, "shared", &[1, 2]), topic(&mut world, "alone", &[2]));
    let told = recover(&mut world, NOW);
    assert_eq!(told.open, [shared]);
    world.register(1);
    world.register(2);
    world.settle();
    assert_eq!(world.state(shared).leader, None);
    assert_eq!(world.state(alone).leader.unwrap().broker, BrokerId(2), "there is no other copy of it");
    let plan = unclean::plan(&world.view, shared, Some(BrokerId(2)), &BTreeMap::new(), false).unwrap();
    assert!(world.commit(&plan.decision));
    assert_eq!(world.state(shared).leader.unwrap().broker, BrokerId(2));
}

#[test]
fn unknown_copies_are_kept_until_an_operator_has_said_so() {
    let mut world = World::with_brokers(1);
    assert!(world.view.is_confirmed() && confirm(&world.view).is_none());
    recover(&mut world, NOW);
    assert!(!world.view.is_confirmed());
    let decision = confirm(&world.view).unwrap();
    assert!(world.commit(&decision));
    assert!(world.view.is_confirmed() && confirm(&world.view).is_none());
    recover(&mut world, NOW + 1);
    assert!(!world.view.is_confirmed());
}

#[test]
fn a_node_that_beats_is_running() {
    let mut world = World::with_brokers(3);
    let before = world.listed();
    assert!(running(&before, &world.listed()).is_empty());
    world.beat(2);
    assert_eq!(running(&before, &world.listed()), brokers(&[2]));
    world.register(4);
    assert_eq!(running(&before, &world.listed()), brokers(&[2, 4]));
}

#[test]
fn a_cluster_that_was_never_recovered_is_written_as_before() {
    let text = String::from_utf8(encode(&Cluster::founded("c", 2000))).unwrap();
    assert_eq!(text, r#"{"id":"c","control_epoch":0,"lease_ms":2000,"lease_in_force_ms":2000}"#);
    let far =
        Cluster { generation_floor: Generation::new(u32::MAX >> 1).unwrap(), ..Cluster::founded("c", 1) };
    let mut world = World::default();
    assert!(world.commit(&Decision::new().put(Key::Cluster, &far)));
    assert_eq!(acknowledge(&world.view, NOW).unwrap_err(), NotAcknowledged::UsedUp);
    assert_eq!(acknowledge(&View::default(), NOW).unwrap_err(), NotAcknowledged::NoCluster);
}

fn place(epoch: u64, store: u64, revision: u64) -> Place {
    Place { epoch, store: Some(store), revision: Revision(revision) }
}

#[test]
fn only_a_higher_epoch_makes_a_new_history() {
    let seen = place(7, 1, 100);
    assert_eq!(judge(&seen, &place(7, 1, 100)), Ok(Verdict::Same));
    assert_eq!(judge(&seen, &place(7, 1, 250)), Ok(Verdict::Same));
    assert_eq!(judge(&seen, &place(7, 1, 99)), Err(WentBack));
    assert_eq!(judge(&seen, &place(7, 2, 250)), Err(WentBack));
    assert_eq!(judge(&seen, &place(8, 1, 3)), Ok(Verdict::Anew));
    assert_eq!(judge(&seen, &place(8, 2, 3)), Ok(Verdict::Anew));
    assert_eq!(judge(&seen, &place(6, 1, 250)), Err(WentBack), "a backup of before an earlier recovery");
    let fresh = Place { epoch: 0, store: None, revision: Revision::ABSENT };
    assert_eq!(judge(&fresh, &place(0, 5, 9)), Ok(Verdict::Same));
}

/// What happens to a store that two processes look at now and then.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Something is decided.
    Write,
    /// A process looks.
    Look(usize),
    /// A backup is made.
    Backup,
    /// The newest backup is put back, on the same servers or on others, and perhaps an operator says so.
    Restore { other: bool, said: bool },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => Just(Act::Write),
        4 => (0..2usize).prop_map(Act::Look),
        1 => Just(Act::Backup),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(other, said)| Act::Restore { other, said }),
    ];
    prop::collection::vec(act, 1..60)
}

/// One history: who wrote each revision, by a number that nothing else has.
#[derive(Clone, Debug, Default)]
struct History {
    writes: Vec<u64>,
    epoch: u64,
    store: u64,
}

impl History {
    fn place(&self) -> Place {
        place(self.epoch, self.store, self.writes.len() as u64)
    }
}

proptest! {
    /// Until an operator has said so, nobody goes on with a store that lacks something he has seen; afterwards everybody
    /// goes on, and knows that it is another history.
    #[test]
    fn nobody_believes_a_store_that_forgot(acts in acts()) {
        let (mut now, mut backup) = (History::default(), History::default());
        let mut seen = [(fresh(), Vec::new()), (fresh(), Vec::new())];
        let (mut number, mut stores, mut is_said) = (0, 0, true);
        for act in acts {
            number += 1;
            match act {
                // A store that was put back is not written to before an operator has spoken, because all refuse it.
                Act::Write if is_said => now.writes.push(number),
                Act::Write => {}
                Act::Backup => backup = now.clone(),
                Act::Restore { other, said } => {
                    now = backup.clone();
                    if other {
                        stores += 1;
                        now.store = stores;
                    }
                    is_said = said;
                    if said {
                        now.epoch = NOW + number;
                        now.writes.push(number);
                    }
                }
                Act::Look(who) => {
                    let (before, writes) = &mut seen[who];
                    let verdict = judge(before, &now.place());
                    prop_assert!(!is_said || verdict.is_ok());
                    match verdict {
                        Ok(Verdict::Same) => prop_assert!(now.writes.starts_with(writes)),
                        Ok(Verdict::Anew) => prop_assert!(now.epoch > before.epoch),
                        Err(WentBack) => continue,
                    }
                    (*before, *writes) = (now.place(), now.writes.clone());
                }
            }
        }
    }
}

fn fresh() -> Place {
    Place { epoch: 0, store: None, revision: Revision::ABSENT }
}
