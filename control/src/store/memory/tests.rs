use std::time::Duration;

use felix_cluster::keys::Key;
use felix_protocol::ids::BrokerId;

use super::*;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn put(node: i32, value: &str) -> Decision {
    Decision::new().put(Key::Node(BrokerId(node)), &value)
}

fn path(node: i32) -> String {
    Key::Node(BrokerId(node)).to_string()
}

async fn has(store: &mut Memory, node: i32) -> bool {
    store.get(&path(node)).await.unwrap().is_some()
}

#[test]
fn each_fate_is_what_it_says() {
    block_on(async {
        let server = Server::new();
        let (mut one, mut two) = (server.connect(), server.connect());
        let fates = [
            Fate::Answered,
            Fate::Refused,
            Fate::AnswerLost,
            Fate::RequestLost,
            Fate::Late(3),
            Fate::Late(9),
        ];
        one.link().script(fates);
        let mut outcomes = Vec::new();
        for node in 0..6 {
            outcomes.push(one.commit(&[put(node, "x")]).await);
        }
        assert!(outcomes[0].is_ok());
        assert!(matches!(outcomes[1], Err(StoreError::Unavailable(_))));
        assert!(outcomes[2..].iter().all(|outcome| matches!(outcome, Err(StoreError::Unknown(_)))));
        // The last transaction was the first to overtake the first late one.
        let (mut seen, mut asked) = (Vec::new(), 1);
        for node in [0, 1, 2, 3] {
            seen.push(has(&mut two, node).await);
            asked += 1;
        }
        assert_eq!(seen, [true, false, true, false]);
        assert!(asked > 3 && has(&mut two, 4).await);
        assert!(!has(&mut two, 5).await);
        server.deliver();
        assert!(has(&mut two, 5).await);
        assert_eq!(two.link().counts(), Counts { reads: 7, transactions: 0 });
        assert_eq!(one.link().counts(), Counts { reads: 0, transactions: 6 });
    });
}

#[test]
fn a_node_that_is_cut_off_reaches_nothing_and_others_do() {
    block_on(async {
        let server = Server::new();
        let (mut one, mut two) = (server.connect(), server.connect());
        let mut watch = one.watch("/", server.revision()).await.unwrap();
        one.link().set_reach(Reach::ReadOnly);
        assert!(matches!(one.commit(&[put(1, "x")]).await, Err(StoreError::Unavailable(_))));
        assert!(!has(&mut one, 1).await);
        one.link().set_reach(Reach::Nothing);
        assert!(matches!(one.get("/nodes/1").await, Err(StoreError::Unavailable(_))));
        let wrote = two.commit(&[put(1, "x")]).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(20), watch.next()).await;
        assert!(silent.is_err());
        one.link().set_reach(Reach::Everything);
        assert_eq!(watch.next().await.unwrap().revision, wrote.revision);
        one.link().break_watches();
        assert!(matches!(watch.next().await, Err(StoreError::Unavailable(_))));
    });
}

#[test]
fn an_answer_may_come_too_late_for_a_node_that_is_cut_off_meanwhile() {
    block_on(async {
        let server = Server::new();
        let (mut one, mut two) = (server.connect(), server.connect());
        let link = one.link();
        link.set_delays(Duration::from_millis(20), Duration::from_millis(200));
        let decisions = [put(1, "x")];
        let (lost, ()) = tokio::join!(one.commit(&decisions), async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            assert!(has(&mut two, 1).await);
            link.set_reach(Reach::Nothing);
        });
        assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    });
}

#[test]
fn a_watch_that_was_held_up_past_a_compaction_has_to_list_anew() {
    block_on(async {
        let server = Server::new();
        let mut store = server.connect();
        let mut told = store.watch("/", server.revision()).await.unwrap();
        let mut held = store.watch("/", server.revision()).await.unwrap();
        let before = store.list("/", None, 10).await.unwrap();
        store.commit(&[put(1, "x")]).await.unwrap();
        told.next().await.unwrap();
        store.link().hold_watches(true);
        server.compact();
        store.link().hold_watches(false);
        assert!(matches!(held.next().await, Err(StoreError::Compacted(_))));
        store.commit(&[put(2, "x")]).await.unwrap();
        assert_eq!(told.next().await.unwrap().changes.len(), 1);
        let after = After { key: String::new(), revision: before.revision };
        assert!(matches!(store.list("/", Some(&after), 10).await, Err(StoreError::Compacted(_))));
        assert!(matches!(store.watch("/", before.revision).await, Err(StoreError::Compacted(_))));
    });
}

#[test]
fn a_store_that_goes_back_or_is_another_is_refused() {
    block_on(async {
        let server = Server::new();
        let mut store = server.connect();
        let backup = server.snapshot();
        let wrote = store.commit(&[put(1, "x")]).await.unwrap();
        assert_eq!(store.position().revision, wrote.revision);
        server.restore(&backup);
        assert!(matches!(store.get("/nodes/1").await, Err(StoreError::WentBack { .. })));
        let mut fresh = server.connect();
        assert!(!has(&mut fresh, 1).await);
        fresh.remember(store.position());
        assert!(matches!(fresh.get("/nodes/1").await, Err(StoreError::WentBack { .. })));
        let mut other = server.connect();
        other.get("/cluster").await.unwrap();
        server.become_another();
        assert!(matches!(other.get("/cluster").await, Err(StoreError::WentBack { .. })));
    });
}
