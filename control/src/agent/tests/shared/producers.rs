//! Blocks of producer ids on a store that several brokers share, and that loses answers.

use super::*;

#[tokio::test]
async fn brokers_never_give_out_one_producer_id_twice_even_where_answers_are_lost() {
    let server = Server::new();
    let (nodes, mut agents) = cluster(&server, 3).await;
    let mut given: BTreeSet<i64> = BTreeSet::new();
    let mut failed = 0;
    for round in 0..12 {
        // Each broker in turn asks through a store that carries out and does not say so, or is not asked at all; or dies.
        let unlucky = usize::try_from(round % 3).unwrap();
        let fate = if round % 2 == 0 { Fate::AnswerLost } else { Fate::RequestLost };
        nodes[unlucky].ways.script(&[fate]);
        let (first, second, third) = tokio::join!(
            agents[0].next_producer_ids(),
            agents[1].next_producer_ids(),
            agents[2].next_producer_ids()
        );
        for block in [first, second, third] {
            match block {
                Ok(block) => {
                    let count = block.clone().count();
                    assert_eq!(count, 1000);
                    assert!(block.into_iter().all(|id| given.insert(id)), "an id was given twice");
                }
                // Nobody was given what may have been taken.
                Err(ControlError::Unknown(_) | ControlError::Unavailable(_)) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if round == 5 {
            kill(agents.remove(1)).await;
            agents.insert(1, nodes[1].join().await);
        }
    }
    assert!(given.len() >= 1000 * (36 - failed) && failed <= 12, "{failed} failed");
    stop_all(agents).await;
}
