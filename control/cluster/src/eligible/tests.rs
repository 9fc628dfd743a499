use felix_protocol::ids::PartitionId;

use super::*;
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

fn state(replicas: &[i32], eligible: &[Pair], last: Last) -> Partition {
    Partition {
        generation: generation(3),
        leader: Some(Leader {
            broker: BrokerId(1),
            session: SessionId(7),
            log: last.pair().map(|pair| pair.log),
        }),
        last,
        eligible: eligible.iter().copied().collect(),
        ..Partition::placed(brokers(replicas))
    }
}

fn opened_at(pair: Pair, number: u32) -> Last {
    Last::Opened { pair, generation: generation(number) }
}

fn tenure() -> Tenure {
    Tenure { broker: BrokerId(1), session: SessionId(7), generation: generation(3) }
}

fn set(pairs: &[Pair], need: usize) -> Report {
    Report::Eligible { pairs: pairs.iter().copied().collect(), dead: BTreeSet::new(), need }
}

#[test]
fn need_is_a_majority_unless_the_operator_says_otherwise() {
    for (replicas, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
        let ids: Vec<i32> = (1..=replicas).collect();
        let partition = Partition::placed(brokers(&ids));
        assert_eq!(need(&partition, None), majority, "{replicas}");
        assert_eq!(need(&partition, Some(1)), 1);
        assert_eq!(need(&partition, Some(9)), ids.len());
    }
    let growing = Partition { adding: brokers(&[2, 3]), ..Partition::placed(brokers(&[1, 2, 3])) };
    assert_eq!(need(&growing, None), 1, "replicas being added do not count yet");
}

#[test]
fn opening_moves_the_last_leader_into_the_set_and_takes_its_own_copy_out() {
    // Broker 2 led before; broker 1 was eligible and is named with log 11.
    let mut before = state(&[1, 2, 3], &[pair(1, 11), pair(3, 33)], opened_at(pair(2, 22), 2));
    before.leader = Some(Leader { log: Some(log(11)), ..before.leader.unwrap() });
    let after = apply(&before, &tenure(), &Report::Opened(log(11))).unwrap();
    assert_eq!(after.eligible, [pair(2, 22), pair(3, 33)].into());
    assert_eq!(after.last, opened_at(pair(1, 11), 3));
    assert!(after.opened());
    // Saying it again changes nothing; saying something else is refused.
    assert_eq!(apply(&after, &tenure(), &Report::Opened(log(11))), Ok(after.clone()));
    let other = apply(&before, &tenure(), &Report::Opened(log(12)));
    assert_eq!(other, Err(Unlawful::OtherLog { named: log(11), held: log(12) }));
}

#[test]
fn only_the_named_tenure_reports() {
    let before = state(&[1, 2], &[], opened_at(pair(1, 11), 3));
    let wrong = [
        Tenure { broker: BrokerId(2), ..tenure() },
        Tenure { session: SessionId(8), ..tenure() },
        Tenure { generation: generation(2), ..tenure() },
        Tenure { generation: generation(4), ..tenure() },
    ];
    for from in wrong {
        assert_eq!(apply(&before, &from, &set(&[], 1)), Err(Unlawful::NotLeader), "{from:?}");
    }
    let leaderless = Partition { leader: None, ..before };
    assert_eq!(apply(&leaderless, &tenure(), &set(&[], 1)), Err(Unlawful::NotLeader));
}

#[test]
fn a_set_is_one_pair_a_broker_never_the_leaders_and_only_replicas() {
    let before = state(&[1, 2, 3], &[], opened_at(pair(1, 11), 3));
    let refused = |pairs: &[Pair]| apply(&before, &tenure(), &set(pairs, 2)).unwrap_err();
    assert_eq!(refused(&[pair(1, 12)]), Unlawful::Member(BrokerId(1)));
    assert_eq!(refused(&[pair(2, 22), pair(2, 23)]), Unlawful::Member(BrokerId(2)));
    assert_eq!(refused(&[pair(4, 44)]), Unlawful::Member(BrokerId(4)));
    let grown = apply(&before, &tenure(), &set(&[pair(2, 22), pair(3, 33)], 2)).unwrap();
    assert_eq!(grown.eligible.len(), 2);
    let unopened = state(&[1, 2, 3], &[], opened_at(pair(1, 11), 2));
    assert_eq!(apply(&unopened, &tenure(), &set(&[], 2)), Err(Unlawful::Opening));
}

#[test]
fn the_set_does_not_shrink_below_need_less_one() {
    let before = state(&[1, 2, 3], &[pair(2, 22)], opened_at(pair(1, 11), 3));
    let floor = apply(&before, &tenure(), &set(&[], 2));
    assert_eq!(floor, Err(Unlawful::BelowFloor { to: 0, floor: 1 }));
    // A swap is no shrinking, a need of one has no floor, and a copy known dead may always go.
    assert!(apply(&before, &tenure(), &set(&[pair(3, 33)], 2)).is_ok());
    assert!(apply(&before, &tenure(), &set(&[], 1)).is_ok());
    let dead = Report::Eligible { pairs: BTreeSet::new(), dead: [pair(2, 22)].into(), need: 2 };
    assert!(apply(&before, &tenure(), &dead).is_ok());
}

#[test]
fn a_declined_copy_counts_no_more() {
    let declined = Declined { reason: DeclineReason::Wiped, current: None, accepted: generation(2), end: 0 };
    let mut before = state(&[1, 2], &[pair(2, 22)], opened_at(pair(1, 11), 2));
    let after = apply(&before, &tenure(), &Report::Declined(declined)).unwrap();
    assert_eq!((after.leader, after.last, after.generation), (None, Last::Nobody, generation(3)));
    assert_eq!(after.eligible, [pair(2, 22)].into());
    assert_eq!(after.gone[0].pair, pair(1, 11));
    before.last = opened_at(pair(1, 11), 3);
    assert_eq!(apply(&before, &tenure(), &Report::Declined(declined)), Err(Unlawful::Opening));
    before.last = Last::Never;
    before.leader = Some(Leader { log: None, ..before.leader.unwrap() });
    assert_eq!(apply(&before, &tenure(), &Report::Declined(declined)), Err(Unlawful::NothingNamed));
}

#[test]
fn of_each_broker_what_it_said_last_is_kept() {
    let says = |accepted, end| {
        let current = Some(log(12));
        Report::Declined(Declined {
            reason: DeclineReason::Doubt,
            current,
            accepted: generation(accepted),
            end,
        })
    };
    let before = state(&[1, 2], &[pair(2, 22)], opened_at(pair(1, 11), 2));
    let once = apply(&before, &tenure(), &says(2, 5)).unwrap();
    let again = Partition { leader: before.leader, eligible: [pair(1, 11), pair(2, 22)].into(), ..once };
    let twice = apply(&again, &tenure(), &says(3, 9)).unwrap();
    // Two entries would have the older one count where the furthest copy is looked for.
    assert_eq!(
        twice.gone.iter().map(|gone| (gone.accepted, gone.end)).collect::<Vec<_>>(),
        [(generation(3), 9)]
    );
}

#[test]
fn a_leader_that_met_damage_gives_its_copy_up() {
    let current = Some(pair(1, 12).log);
    let doubt = Declined { reason: DeclineReason::Doubt, current, accepted: generation(3), end: 9 };
    let mut before = state(&[1, 2], &[pair(2, 22)], opened_at(pair(1, 11), 3));
    // As after the creation of a topic: no copy was named.
    for named in [before.leader.unwrap().log, None] {
        before.leader = Some(Leader { log: named, ..before.leader.unwrap() });
        let after = apply(&before, &tenure(), &Report::Declined(doubt)).unwrap();
        assert_eq!((after.leader, after.last), (None, Last::Nobody));
        assert_eq!(after.eligible, [pair(2, 22)].into(), "who holds everything leads on");
        assert_eq!((after.gone[0].pair, after.gone[0].current), (pair(1, 11), current));
    }
}

#[test]
fn a_report_from_before_a_change_does_not_land() {
    let mut world = World::with_brokers(2);
    let new = NewTopic { name: "t".to_owned(), partitions: 1, replication_factor: 2, ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    let partition = world.view.partition(&id).unwrap().clone();
    let learned = world.view.learned(&id).unwrap();
    let leader = *partition.leader().unwrap();
    let from = Tenure { broker: leader.broker, session: leader.session, generation: partition.generation() };
    let report = decide(&partition, learned, &from, &Report::Opened(log(1))).unwrap().unwrap();
    // The topic's key moved: the compares are what the leader learned, not what is there now.
    let (widened, _) = crate::topics::widen(&world.view, "t", 2, None).unwrap();
    assert!(world.commit(&widened));
    assert!(!world.commit(&report));
    let again = world.view.learned(&id).unwrap();
    let report = decide(&partition, again, &from, &Report::Opened(log(1))).unwrap().unwrap();
    assert!(world.commit(&report));
    assert!(!world.commit(&report), "nor twice");
}
