//! Ten thousand partitions. The times are printed, not judged: run with `--nocapture` to see them.

use std::time::Instant;

use super::*;

#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn ten_thousand_partitions_are_created_and_led_again() {
    let place = on_disk();
    let mut logs = BTreeMap::new();
    let begun = now();
    let agent = place.start().await;
    eprintln!("start on an empty directory: {:?}", begun.elapsed());

    let begun = now();
    let made = create_led(&agent, topic("wide", 10_000)).await;
    eprintln!("10,000 partitions of one topic, placed and promoted: {:?}", begun.elapsed());
    let begun = now();
    open_all(&agent, &mut logs).await;
    eprintln!("10,000 partitions reported open: {:?}", begun.elapsed());
    kill(agent).await;

    let begun = now();
    let agent = place.start().await;
    eprintln!("start with 10,000 partitions, promoted: {:?}", begun.elapsed());
    assert!(generations(&agent.view()).iter().all(|generation| *generation == 2));
    let begun = now();
    open_all(&agent, &mut logs).await;
    eprintln!("and reported open: {:?}", begun.elapsed());
    check_view(&agent.view()).unwrap();

    let begun = now();
    create(&agent, topic("small", 1), Duration::ZERO).await;
    assert!(agent.wait_for(LONG, |view| view.partition_count() == 10_001).await);
    eprintln!("one more topic beside them: {:?}", begun.elapsed());

    let begun = now();
    agent.delete_topics(vec![TopicRef::Id(made.id)]).await.remove(0).unwrap();
    assert!(agent.wait_for(LONG, |view| view.partition_count() == 1).await);
    eprintln!("10,000 partitions deleted: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_thousand_topics_in_one_request() {
    let place = on_disk();
    let agent = place.start().await;
    let new = (0..1000).map(|at| topic(&format!("topic-{at}"), 1)).collect();
    let begun = now();
    let answers = agent.create_topics(new, false, Duration::ZERO).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(agent.wait_for(LONG, |view| view.partition_count() == 1000).await);
    eprintln!("1,000 topics in one request: {:?}", begun.elapsed());
}
