//! Two brokers that speak to each other.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_under_their_numbers_in_any_order() {
    let (one, two) = pair(Desk::default()).await;
    one.up(2, None).await;
    two.up(1, None).await;
    let asks: Vec<_> = (0..20)
        .map(|index| {
            let peers = Arc::clone(&one.peers);
            tasks::spawn("test", async move { peers.ask(BrokerId(2), question(index), LONG).await })
        })
        .collect();
    two.asked(20).await;
    let mut asked = std::mem::take(&mut *two.desk.asked.lock());
    asked.reverse();
    for (from, question, reply) in asked {
        assert_eq!(from, BrokerId(1));
        reply.send(&standings(&question));
    }
    for (index, ask) in (0..20).zip(asks) {
        assert_eq!(bounded(ask).await.unwrap().unwrap().unwrap(), standings(&question(index)));
    }
    // The other direction is another connection.
    let asks = two.peers.ask(BrokerId(1), question(7), LONG);
    let answers = async {
        one.asked(1).await;
        let (_, question, reply) = one.desk.asked.lock().pop().unwrap();
        reply.send(&standings(&question));
    };
    assert_eq!(bounded(async { tokio::join!(asks, answers).0 }).await.unwrap(), standings(&question(7)));
    let nobody = one.peers.ask(BrokerId(9), question(0), LONG).await;
    assert_eq!(nobody, Err(Unanswered::NotConnected(BrokerId(9))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_have_several_answers_and_large_records_arrive_whole() {
    let (one, two) = pair(Desk::default()).await;
    let up = one.up(2, None).await;
    let link = one.link(2).await;
    let records = Bytes::from((0..40_000_000_u32).map(|at| at.to_le_bytes()[0] ^ 7).collect::<Vec<u8>>());
    let (to, mut answers) = mpsc::unbounded_channel();
    let mut left = 3;
    let answered = move |answer| {
        left -= 1;
        to.send(answer).unwrap();
        left == 0
    };
    let room = bounded(link.room(records.len())).await.unwrap();
    link.post(&shipment(records.clone()), room, Some(up), LONG, Box::new(answered)).unwrap();
    two.asked(1).await;
    let (_, request, reply) = two.desk.asked.lock().pop().unwrap();
    assert!(request == shipment(records), "the records are as they were");
    assert!(link.try_room().is_none(), "what is larger than all there is goes alone");
    for index in 0..3 {
        reply.send(&standings(&question(index)));
        assert_eq!(bounded(answers.recv()).await.unwrap(), Ok(standings(&question(index))));
    }
    bounded(link.room(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_life_of_a_peer_is_dialled_at_once_and_the_old_one_has_no_answers() {
    let (one, two) = pair(Desk::default()).await;
    let first = one.up(2, None).await;
    two.up(1, None).await;
    let peers = Arc::clone(&one.peers);
    let ask = tasks::spawn("test", async move { peers.ask(BrokerId(2), question(1), LONG).await });
    two.asked(1).await;
    two.town.registers(5);
    one.town.knows(2, 5, two.address);
    assert_eq!(bounded(ask).await.unwrap().unwrap(), Err(Unanswered::Disconnected(BrokerId(2))));
    let second = one.up(2, Some(first)).await;
    assert_eq!((first.session, second.session), (SessionId(2), SessionId(5)));
    let room = one.link(2).await.try_room().unwrap();
    let late = one.link(2).await.post(&question(1), room, Some(first), LONG, Box::new(|_| true));
    assert_eq!(late, Err(Unanswered::NotConnected(BrokerId(2))), "it was meant for the life before");
    // Its own new life is told to the others, too.
    let before = one.up(2, None).await;
    two.town.knows(1, 8, one.address);
    one.town.registers(8);
    one.up(2, Some(before)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_was_away_is_had_again_when_it_is_back() {
    let (one, two) = pair(Desk::default()).await;
    let first = one.up(2, None).await;
    let address = two.address;
    drop(two);
    one.down(2).await;
    // Somebody takes its place for a while, who is no broker.
    let listener = bounded(async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    let (stranger, _) = bounded(listener.accept()).await.unwrap();
    drop((stranger, listener));
    let back = host(2, Desk { prompt: true, ..Desk::default() }, None).await;
    back.town.knows(1, 1, one.address);
    one.town.knows(2, 2, back.address);
    one.up(2, Some(first)).await;
    assert_eq!(one.peers.ask(BrokerId(2), question(3), LONG).await.unwrap(), standings(&question(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_under_way_than_both_sides_hold() {
    let (one, two) = pair(Desk::default()).await;
    one.up(2, None).await;
    let link = one.link(2).await;
    let mut sent = 0;
    while let Some(room) = link.try_room() {
        link.post(&question(sent), room, None, LONG, Box::new(|_| true)).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 64);
    let timed_out = one.peers.ask(BrokerId(2), question(0), Duration::from_millis(20)).await;
    assert_eq!(timed_out, Err(Unanswered::TimedOut(BrokerId(2))));
    two.asked(64).await;
    let (_, question, reply) = two.desk.asked.lock().pop().unwrap();
    reply.send(&standings(&question));
    bounded(link.room(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_answered_in_time_is_given_up_and_makes_room() {
    let (one, two) = pair(Desk::default()).await;
    let up = one.up(2, None).await;
    let link = one.link(2).await;
    let (to, from) = oneshot::channel();
    let mut to = Some(to);
    let answered = move |answer| {
        to.take().unwrap().send(answer).unwrap();
        true
    };
    let room = link.try_room().unwrap();
    link.post(&question(0), room, None, Duration::from_millis(20), Box::new(answered)).unwrap();
    assert_eq!(bounded(from).await.unwrap(), Err(Unanswered::TimedOut(BrokerId(2))));
    assert_eq!(one.up(2, None).await, up, "the peer still answers whether it is there");
    two.asked(1).await;
    let (_, question, reply) = two.desk.asked.lock().pop().unwrap();
    reply.send(&standings(&question));
    let asked = one.peers.ask(BrokerId(2), self::question(1), LONG);
    let answers = async {
        two.asked(1).await;
        let (_, question, reply) = two.desk.asked.lock().pop().unwrap();
        reply.send(&standings(&question));
    };
    let answer = bounded(async { tokio::join!(asked, answers).0 }).await;
    assert_eq!(answer.unwrap(), standings(&self::question(1)), "a late answer is not taken for another's");
}
