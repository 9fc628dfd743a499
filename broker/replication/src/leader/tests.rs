//! Stories of one leader, told event by event.

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, LogId, Uuid};
use proptest::prelude::*;

use super::*;
use crate::eligible::{KeyState, Last, Pair, Report, Revision};
use crate::event::Nodes;

mod stories;

fn pair(broker: i32, log: u128) -> Pair {
    Pair { broker: BrokerId(broker), log: LogId(Uuid::from_u128(log)) }
}

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn at(milliseconds: u64) -> MonoTime {
    MonoTime(milliseconds * 1_000_000)
}

fn key(revision: u64, eligible: &[Pair], last: Last) -> KeyState {
    let eligible = eligible.iter().copied().collect();
    KeyState {
        revision: Revision(revision),
        topic: Revision(1),
        eligible,
        last,
        replicas: (1..4).map(BrokerId).collect(),
        generation: generation(5),
        led: true,
    }
}

/// A tenure at generation 5 of a copy with 10 records, 7 of them below its mark.
fn tenure(key: KeyState, need: usize) -> Tenure {
    Tenure { generation: generation(5), own: pair(1, 10), key, mark: 7, end: 10, stored: 10, need }
}

/// The only replica: nobody else is eligible.
fn alone() -> (Leader, Report) {
    let (leader, actions) = Leader::<AllRules>::open(tenure(key(3, &[], Last::Never), 1));
    let [Action::Report(report)] = actions.as_slice() else { panic!("{actions:?}") };
    (leader, report.clone())
}

fn alone_and_open() -> Leader {
    let (mut leader, report) = alone();
    land(&mut leader, &report, 4);
    leader
}

fn land(leader: &mut Leader, report: &Report, revision: u64) -> Vec<Action> {
    let answer = ReportAnswer::Landed(Revision(revision));
    leader.step(Event::ReportAnswered { number: report.number, answer }, at(1))
}

fn wait(leader: &mut Leader, ticket: u32, word: Word, end: Offset, deadline: u64) -> Vec<Action> {
    leader.step(Event::Wait { ticket: Ticket(ticket), word, end, deadline: at(deadline) }, at(1))
}

fn release(tickets: &[u32], vouch: Vouch) -> Action {
    Action::Release { tickets: tickets.iter().map(|ticket| Ticket(*ticket)).collect(), vouch }
}

#[test]
fn opening_reports_itself_on_the_revision_it_was_named_at() {
    let (_, report) = alone();
    assert_eq!(report.revision, Revision(3));
    assert_eq!(report.last, Last::Opened { pair: pair(1, 10), generation: generation(5) });
    assert_eq!(report.eligible, BTreeSet::new());
}

#[test]
fn nothing_is_acknowledged_before_the_opening_landed() {
    let (mut leader, report) = alone();
    assert_eq!(leader.admits(Some(Word::Mark), at(5)), Ok(()), "parked, not refused");
    leader.step(Event::Appended { end: 12 }, at(1));
    assert_eq!(wait(&mut leader, 1, Word::Stored, 12, 100), []);
    assert_eq!(wait(&mut leader, 2, Word::Mark, 12, 100), []);
    assert_eq!(
        leader.step(Event::Stored { end: 12 }, at(2)),
        [],
        "durable, but the store knows nothing of us"
    );
    assert_eq!(leader.mark(), 7);
    assert_eq!(
        land(&mut leader, &report, 4),
        [
            Action::Opened,
            Action::Advance { mark: 12 },
            release(&[1], Vouch::Lease),
            release(&[2], Vouch::Mark)
        ]
    );
}

#[test]
fn alone_and_open_the_disk_gives_both_words() {
    let mut leader = alone_and_open();
    assert_eq!(leader.mark(), 10, "what the copy holds durably is committed by opening");
    leader.step(Event::Appended { end: 11 }, at(2));
    leader.step(Event::Appended { end: 13 }, at(2));
    wait(&mut leader, 1, Word::Mark, 11, 100);
    wait(&mut leader, 2, Word::Stored, 13, 100);
    assert_eq!(
        leader.step(Event::Stored { end: 12 }, at(3)),
        [Action::Advance { mark: 12 }, release(&[1], Vouch::Mark)]
    );
    assert_eq!(
        leader.step(Event::Stored { end: 13 }, at(3)),
        [Action::Advance { mark: 13 }, release(&[2], Vouch::Lease)]
    );
    assert_eq!(leader.step(Event::Stored { end: 13 }, at(3)), [], "the same news twice");
}

#[test]
fn a_flush_never_claims_more_than_was_written() {
    let mut leader = alone_and_open();
    leader.step(Event::Stored { end: 99 }, at(2));
    assert_eq!((leader.stored(), leader.mark()), (10, 10));
}

#[test]
fn a_duplicate_is_answered_when_the_mark_has_passed_the_first() {
    let mut leader = alone_and_open();
    leader.step(Event::Appended { end: 12 }, at(2));
    assert_eq!(wait(&mut leader, 1, Word::Mark, 12, 100), []);
    assert_eq!(wait(&mut leader, 2, Word::Mark, 12, 100), [], "its retry waits as well");
    assert_eq!(
        leader.step(Event::Stored { end: 12 }, at(3)),
        [Action::Advance { mark: 12 }, release(&[1, 2], Vouch::Mark)]
    );
    assert_eq!(
        wait(&mut leader, 3, Word::Mark, 12, 100),
        [release(&[3], Vouch::Mark)],
        "a later one need not"
    );
}

#[test]
fn time_runs_out_without_a_word() {
    let (mut leader, _) = alone();
    wait(&mut leader, 1, Word::Mark, 10, 100);
    wait(&mut leader, 2, Word::Mark, 10, 300);
    assert_eq!(leader.next_tick(), at(100));
    assert_eq!(leader.step(Event::Tick, at(99)), []);
    assert_eq!(leader.step(Event::Tick, at(100)), [Action::Expire { tickets: vec![Ticket(1)] }]);
    assert_eq!(leader.next_tick(), at(300));
    assert_eq!(wait(&mut leader, 3, Word::Mark, 10, 0), [Action::Expire { tickets: vec![Ticket(3)] }]);
}

#[test]
fn the_end_of_the_tenure_ends_every_wait_at_once_and_for_good() {
    let (mut leader, report) = alone();
    wait(&mut leader, 1, Word::Mark, 10, 100);
    wait(&mut leader, 2, Word::Stored, 10, 100);
    assert_eq!(leader.step(Event::Ended, at(2)), [Action::Refuse { tickets: vec![Ticket(2), Ticket(1)] }]);
    assert_eq!(leader.admits(None, at(5)), Err(Refusal::Ended));
    assert_eq!(land(&mut leader, &report, 4), [], "the opening landed too late");
    assert_eq!(leader.step(Event::Stored { end: 10 }, at(3)), []);
    assert_eq!(wait(&mut leader, 3, Word::Mark, 5, 100), [Action::Refuse { tickets: vec![Ticket(3)] }]);
    assert_eq!(leader.next_tick(), MonoTime::NEVER);
}

#[test]
fn an_opening_without_an_answer_is_read_back_before_it_is_sent_again() {
    let (mut leader, report) = alone();
    let unknown = Event::ReportAnswered { number: report.number, answer: ReportAnswer::Unknown };
    assert_eq!(leader.step(unknown.clone(), at(0)), []);
    assert_eq!(leader.next_tick(), at(50));
    assert_eq!(leader.step(Event::Tick, at(50)), [Action::ReadKey]);
    // The store cannot be read either: later, and more patiently.
    assert_eq!(leader.step(Event::KeyRead { key: None }, at(50)), []);
    assert_eq!(leader.next_tick(), at(150));
    assert_eq!(leader.step(Event::Tick, at(150)), [Action::ReadKey]);
    // It did not land (yet): the same report again.
    let unchanged = key(3, &[], Last::Never);
    assert_eq!(
        leader.step(Event::KeyRead { key: Some(unchanged) }, at(151)),
        [Action::Report(report.clone())]
    );
    // No answer again, but this time the read shows it.
    leader.step(unknown, at(200));
    let landed = key(4, &[], report.last);
    assert_eq!(
        leader.step(Event::KeyRead { key: Some(landed) }, at(300)),
        [Action::Opened, Action::Advance { mark: 10 }]
    );
    assert_eq!(leader.next_tick(), MonoTime::NEVER);
}

#[test]
fn an_opening_that_lost_its_compare_is_made_anew_on_what_the_key_says() {
    let (mut leader, report) = alone();
    let other = key(8, &[pair(2, 20)], Last::Declined);
    let refused = ReportAnswer::Refused(other);
    let actions = leader.step(Event::ReportAnswered { number: report.number, answer: refused }, at(2));
    let [Action::Report(again)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(again.revision, Revision(8));
    assert_eq!(again.eligible, BTreeSet::from([pair(2, 20)]));
}

#[test]
fn who_led_last_holds_the_mark_until_it_has_confirmed() {
    let last = Last::Opened { pair: pair(2, 20), generation: generation(4) };
    let (mut leader, actions) = Leader::<AllRules>::open(tenure(key(3, &[], last), 2));
    let [Action::Report(report)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(report.eligible, BTreeSet::from([pair(2, 20)]), "C10");
    assert_eq!(land(&mut leader, report, 4), [Action::Opened]);
    assert_eq!(leader.mark(), 7, "nothing confirmed: the mark stays");
    let confirmed = Event::Confirmed { pair: pair(2, 21), position: 10 };
    assert_eq!(leader.step(confirmed, at(3)), [], "another copy on the same broker is not that member");
    let confirmed = Event::Confirmed { pair: pair(2, 20), position: 9 };
    assert_eq!(leader.step(confirmed, at(3)), [Action::Advance { mark: 9 }]);
}

#[test]
fn what_was_not_durable_at_the_takeover_is_not_committed_by_opening() {
    let not_flushed = Tenure { stored: 8, ..tenure(key(3, &[], Last::Never), 1) };
    let (mut leader, actions) = Leader::<AllRules>::open(not_flushed);
    let [Action::Report(report)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(land(&mut leader, report, 4), [Action::Opened, Action::Advance { mark: 8 }]);
    assert_eq!(leader.step(Event::Stored { end: 10 }, at(2)), [Action::Advance { mark: 10 }]);
}

#[test]
fn too_few_members_refuse_before_the_append_and_wait_after_it() {
    let (mut leader, actions) = Leader::<AllRules>::open(tenure(key(3, &[], Last::Declined), 2));
    assert_eq!(leader.admits(Some(Word::Mark), at(5)), Ok(()), "while opening, writers are parked");
    let [Action::Report(report)] = actions.as_slice() else { panic!("{actions:?}") };
    land(&mut leader, report, 4);
    let (early, late) = (at(1).after(FIRST_WORD / 2), at(1).after(FIRST_WORD));
    let too_few = Err(Refusal::TooFewMembers { have: 1, need: 2 });
    assert_eq!(leader.admits(Some(Word::Mark), early), Ok(()), "its followers had no time for a word");
    assert_eq!(leader.admits(Some(Word::Mark), late), too_few);
    assert_eq!(leader.admits(Some(Word::Stored), late), Ok(()), "acks=1 asks for the leader only");
    leader.step(Event::Halted(pair(2, 20)), at(1));
    assert_eq!(leader.admits(Some(Word::Mark), early), Ok(()), "there is another");
    leader.step(Event::Confirmed { pair: pair(3, 30), position: 2 }, at(1));
    assert_eq!(leader.admits(Some(Word::Mark), early), too_few, "both have spoken, and are not level");
    leader.step(Event::Appended { end: 12 }, at(2));
    wait(&mut leader, 1, Word::Mark, 12, 100);
    assert_eq!(leader.step(Event::Stored { end: 12 }, at(3)), [], "not visible either");
    // The operator lowers the need: what was stored becomes visible.
    assert_eq!(
        leader.step(Event::Need(1), at(4)),
        [Action::Advance { mark: 12 }, release(&[1], Vouch::Mark)]
    );
}

#[test]
fn members_whose_sessions_are_over_stand_for_nothing() {
    let set = [pair(2, 20), pair(3, 30)];
    let (mut leader, actions) = Leader::<AllRules>::open(tenure(key(3, &set, Last::Declined), 2));
    let [Action::Report(report)] = actions.as_slice() else { panic!("{actions:?}") };
    land(&mut leader, report, 4);
    let nodes = |fenced: &[i32]| {
        let fenced = fenced.iter().copied().map(BrokerId).collect();
        Event::Nodes(Nodes { fenced, ..Nodes::default() })
    };
    leader.step(nodes(&[2]), at(2));
    assert_eq!(leader.admits(Some(Word::Mark), at(5)), Ok(()));
    // Nobody is left, but C9 keeps one in the set.
    leader.step(nodes(&[2, 3]), at(3));
    assert_eq!(leader.admits(Some(Word::Mark), at(5)), Err(Refusal::TooFewMembers { have: 1, need: 2 }));
    assert_eq!(leader.admits(Some(Word::Stored), at(5)), Ok(()));
    // One that lives may take the place of one that does not: writers wait for that.
    leader.step(nodes(&[3]), at(4));
    assert_eq!(leader.admits(Some(Word::Mark), at(5)), Ok(()));
}

#[test]
fn while_the_set_stays_true_nothing_is_reported() {
    let (b, c) = (pair(2, 20), pair(3, 30));
    let (mut leader, actions) = Leader::<AllRules>::open(tenure(key(3, &[], Last::Never), 2));
    let mut reports: Vec<Action> = actions;
    let mut now = 1;
    let mut revision = 3;
    let mut end = 10;
    let mut step = |event: Event, now: u64| {
        let mut actions = leader.step(event, at(now));
        reports.extend(actions.extract_if(.., |action| matches!(action, Action::Report(_))));
        while let Some(Action::Report(report)) = reports
            .iter()
            .find(|action| matches!(action, Action::Report(report) if report.revision == Revision(revision)))
        {
            revision += 1;
            let (number, answer) = (report.number, ReportAnswer::Landed(Revision(revision)));
            let mut more = leader.step(Event::ReportAnswered { number, answer }, at(now));
            reports.extend(more.extract_if(.., |action| matches!(action, Action::Report(_))));
        }
        reports.len()
    };
    // Both become level, and are members a second later: the opening report, and two that let them in.
    for position in [10, 11] {
        for pair in [b, c] {
            step(Event::Confirmed { pair, position }, now);
        }
        now += 1000;
    }
    let before = step(Event::Tick, now);
    assert_eq!(before, 3);
    // Ten thousand writes, with ticks between them: the store hears of none.
    for _ in 0..10_000 {
        end += 1;
        now += 3;
        step(Event::Appended { end }, now);
        step(Event::Confirmed { pair: b, position: end }, now);
        step(Event::Stored { end }, now + 1);
        step(Event::Confirmed { pair: c, position: end }, now + 2);
        step(Event::Tick, now + 2);
    }
    assert_eq!(step(Event::Tick, now + 60_000), before, "no report in the steady state");
    assert_eq!(leader.mark(), end);
    assert_eq!(leader.lag(), 0);
}

/// A write every 40 ms that B confirms at once and C one write later. Returns the reports after the opening one, with when they
/// were made, and the tenure; `goes_on`: what C confirms of a write, if it does.
fn writes_all_the_time(goes_on: impl Fn(u64) -> bool) -> (Leader, Vec<(u64, BTreeSet<Pair>)>) {
    let (b, c) = (pair(2, 20), pair(3, 30));
    let (mut leader, opening) = Leader::<AllRules>::open(tenure(key(3, &[], Last::Never), 2));
    let [Action::Report(opening)] = opening.as_slice() else { panic!("{opening:?}") };
    land(&mut leader, opening, 4);
    let (mut revision, mut reports) = (4, Vec::new());
    for round in 0..60u64 {
        let now = round * 40;
        let end = 11 + i64::try_from(round).unwrap();
        let mut events = vec![Event::Appended { end }, Event::Stored { end }];
        events.push(Event::Confirmed { pair: b, position: end });
        if goes_on(now) {
            events.push(Event::Confirmed { pair: c, position: end - 1 });
        }
        events.push(Event::Tick);
        for event in events {
            for action in leader.step(event, at(now)) {
                let Action::Report(report) = action else { continue };
                reports.push((now, report.eligible));
                revision += 1;
                let answer = ReportAnswer::Landed(Revision(revision));
                leader.step(Event::ReportAnswered { number: report.number, answer }, at(now));
            }
        }
    }
    (leader, reports)
}

#[test]
fn whoever_keeps_up_with_writes_that_never_stop_becomes_a_member() {
    let (b, c) = (pair(2, 20), pair(3, 30));
    let (leader, reports) = writes_all_the_time(|_| true);
    let [(_, first), (then, both)] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!((first, both), (&BTreeSet::from([b]), &BTreeSet::from([b, c])));
    assert!((1000..1200).contains(then), "level for a second, whatever the mark does meanwhile: {then}");
    assert_eq!(leader.mark(), 69, "and from then on the mark waits for it");
}

#[test]
fn whoever_stands_still_while_the_mark_waits_for_it_is_waited_for_no_longer_than_a_member() {
    let (leader, reports) = writes_all_the_time(|now| now < 1000);
    assert_eq!(reports, [(0, BTreeSet::from([pair(2, 20)]))]);
    assert_eq!(leader.mark(), 70, "nobody but the set is waited for");
}

#[test]
fn the_slowest_follower_that_has_not_stopped_is_the_lag() {
    let (b, c) = (pair(2, 20), pair(3, 30));
    let (mut leader, _) = Leader::<AllRules>::open(tenure(key(3, &[b], Last::Never), 2));
    assert_eq!(leader.lag(), 0, "nobody has said anything");
    leader.step(Event::Appended { end: 30 }, at(1));
    leader.step(Event::Confirmed { pair: b, position: 25 }, at(1));
    leader.step(Event::Confirmed { pair: c, position: 11 }, at(1));
    assert_eq!(leader.lag(), 19);
    leader.step(Event::Halted(c), at(2));
    assert_eq!(leader.lag(), 5);
    assert!(!leader.may_restart(&b) && leader.may_restart(&c), "C12");
}

#[derive(Clone, Debug)]
enum Move {
    Append(i64),
    Flush,
    Wait(bool, u64),
    Answer(u8),
    Read(u8),
    Confirm(u8, i64),
    Need(usize),
    Tick(u64),
    Leave(u64, bool),
    LeaseOver,
    End,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => (1..5i64).prop_map(Move::Append),
        4 => Just(Move::Flush),
        4 => (any::<bool>(), 0..200u64).prop_map(|(mark, wait)| Move::Wait(mark, wait)),
        2 => any::<u8>().prop_map(Move::Answer),
        2 => any::<u8>().prop_map(Move::Read),
        3 => (0..3u8, 0..5i64).prop_map(|(who, back)| Move::Confirm(who, back)),
        1 => (1..4usize).prop_map(Move::Need),
        2 => (0..100u64).prop_map(Move::Tick),
        1 => (0..200u64, any::<bool>()).prop_map(|(patience, anyway)| Move::Leave(patience, anyway)),
        1 => Just(Move::LeaseOver),
        1 => Just(Move::End),
    ]
}

proptest! {
    /// Whatever the order of events: every writer gets exactly one word, none before the opening, none by
    /// the mark before the mark is there, and the mark never moves back. Who resigns has everything durable, names only
    /// eligible pairs that confirmed all of it, and keeps nobody waiting.
    #[test]
    fn every_writer_gets_exactly_one_word(script in prop::collection::vec(moves(), 1..120)) {
        let members = [pair(2, 20), pair(3, 30)];
        let start = key(3, &members[..1], Last::Opened { pair: members[1], generation: generation(4) });
        // What the store holds.
        let mut held = start.clone();
        let (mut leader, mut pending) = Leader::<AllRules>::open(tenure(start, 2));
        let mut reports: Vec<Report> = Vec::new();
        let (mut now, mut end, mut mark) = (0, 10, 7);
        let mut waiting = std::collections::BTreeMap::new();
        let mut tickets = 0;
        let mut opened = false;
        let mut script = script.into_iter();
        loop {
            for action in std::mem::take(&mut pending) {
                match action {
                    Action::Report(report) => {
                        if let Some(resigned) = report.resigned() {
                            let core = leader.core();
                            prop_assert!(core.stored == end && resigned.end == end && leader.waiters.is_empty());
                            let level = |pair: &Pair| core.confirmed.get(pair) == Some(&end);
                            prop_assert!(resigned.pairs.iter().all(level));
                            prop_assert!(resigned.pairs.is_subset(&report.eligible));
                            let nobody = resigned.pairs.is_empty() && !report.eligible.is_empty();
                            prop_assert!(!nobody || leader.leaving.unwrap().anyway);
                        }
                        reports.push(report);
                    }
                    Action::ReadKey | Action::CutOff { .. } => {}
                    Action::Opened => opened = true,
                    Action::Advance { mark: to } => {
                        prop_assert!(to > mark && opened);
                        mark = to;
                    }
                    Action::Release { tickets, vouch } => {
                        prop_assert!(opened);
                        for ticket in tickets {
                            let waited: Option<i64> = waiting.remove(&ticket);
                            let waited = waited.expect("answered twice");
                            prop_assert!(vouch != Vouch::Mark || waited <= mark);
                        }
                    }
                    Action::Expire { tickets } | Action::Refuse { tickets } => {
                        for ticket in tickets {
                            prop_assert!(waiting.remove(&ticket).is_some(), "answered twice");
                        }
                    }
                }
            }
            opened |= leader.core().opened_at.is_some();
            let Some(next) = script.next() else { break };
            // What is not admitted is not written.
            if matches!(next, Move::Append(_) | Move::Wait(..)) && leader.is_leaving() {
                prop_assert_eq!(leader.admits(None, at(5)), Err(Refusal::Ended));
                continue;
            }
            let event = match next {
                Move::Append(records) => {
                    end += records;
                    Event::Appended { end }
                }
                Move::Flush => Event::Stored { end },
                Move::Wait(by_mark, patience) => {
                    let ticket = Ticket(tickets);
                    tickets += 1;
                    waiting.insert(ticket, end);
                    let word = if by_mark { Word::Mark } else { Word::Stored };
                    Event::Wait { ticket, word, end, deadline: at(now + patience) }
                }
                Move::Answer(choice) => {
                    let Some(report) = reports.get(usize::from(choice) % reports.len().max(1)) else { continue };
                    let number = report.number;
                    let answer = match choice % 3 {
                        0 if report.revision == held.revision => {
                            held.revision.0 += 1;
                            held.eligible = report.eligible.clone();
                            held.last = report.last;
                            ReportAnswer::Landed(held.revision)
                        }
                        1 => ReportAnswer::Unknown,
                        _ => continue,
                    };
                    Event::ReportAnswered { number, answer }
                }
                Move::Read(choice) => Event::KeyRead {
                    key: match choice % 4 {
                        0 => None,
                        // Somebody else wrote: never a set with more members, as only who leads may vouch for one.
                        written @ (1 | 2) => {
                            held.revision.0 += 1;
                            if written == 2 {
                                held.eligible.remove(&members[0]);
                            }
                            Some(held.clone())
                        }
                        _ => Some(held.clone()),
                    },
                },
                Move::Confirm(who, back) => {
                    let who = [members[0], members[1], pair(2, 21)][usize::from(who)];
                    Event::Confirmed { pair: who, position: (end - back).max(0) }
                }
                Move::Need(need) => Event::Need(need),
                Move::Tick(later) => {
                    now += later;
                    Event::Tick
                }
                Move::Leave(patience, anyway) => Event::Leave { until: at(now + patience), anyway },
                Move::LeaseOver => Event::LeaseOver,
                Move::End => Event::Ended,
            };
            pending = leader.step(event, at(now));
            opened |= leader.core().opened_at.is_some();
        }
        for action in leader.step(Event::Ended, at(now)) {
            if let Action::Refuse { tickets } = action {
                for ticket in tickets {
                    waiting.remove(&ticket);
                }
            }
        }
        prop_assert!(waiting.is_empty(), "never answered: {waiting:?}");
    }
}
