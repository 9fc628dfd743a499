//! StandingQuery: how far copies are, asked before one of them is promoted. Both sides of it.
//!
//! A broker that dies may have led ten thousand partitions, so a question is about many at once. This broker's own copies
//! are asked about in the same way, without a connection.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use felix_cluster::promotion::{self, StandingsOf};
use felix_control::inquiry::{Inquirer, Told};
use felix_protocol::ids::{BrokerId, PartitionId};
use felix_protocol::peer::Message;
use felix_protocol::peer::standing::{Standing, StandingAnswers, StandingQuery};
use tokio::sync::oneshot;

use crate::partitions::Partitions;
use crate::peers::{Peers, Reply};

/// Partitions in one question.
const MOST_ASKED: usize = 8192;

/// Answers another broker.
pub(super) fn answer(partitions: &Partitions, query: StandingQuery, reply: Reply) {
    partitions.standings(query.partitions, move |standings| {
        reply.send(&Message::StandingAnswers(StandingAnswers { standings }));
    });
}

/// Asks.
pub(super) struct Inquiries {
    pub(super) own: BrokerId,
    pub(super) peers: Arc<Peers>,
    pub(super) partitions: Arc<Partitions>,
}

type Answer = Pin<Box<dyn Future<Output = (BrokerId, Vec<Standing>)> + Send>>;

impl Inquirer for Inquiries {
    fn ask(&self, questions: BTreeMap<BrokerId, Vec<PartitionId>>, within: Duration) -> Told {
        let mut answers: Vec<Answer> = Vec::new();
        for (broker, partitions) in questions {
            for asked in partitions.chunks(MOST_ASKED) {
                answers.push(self.ask_one(broker, asked.to_vec(), within));
            }
        }
        Box::pin(async move {
            let mut told = StandingsOf::new();
            for (broker, standings) in all(answers).await {
                for standing in standings {
                    // Without a copy there is nothing to be named for.
                    let Some(log) = standing.log else { continue };
                    let Standing { partition, accepted, end, doubt, .. } = standing;
                    let standing = promotion::Standing { log, accepted, end, doubt };
                    told.entry(partition).or_default().insert(broker, standing);
                }
            }
            told
        })
    }
}

impl Inquiries {
    fn ask_one(&self, broker: BrokerId, partitions: Vec<PartitionId>, within: Duration) -> Answer {
        if broker == self.own {
            let (to, from) = oneshot::channel();
            // Nobody waits any more where it cannot be sent.
            self.partitions.standings(partitions, |standings| drop(to.send(standings)));
            return Box::pin(async move {
                let standings = tokio::time::timeout(within, from).await;
                (broker, standings.ok().and_then(Result::ok).unwrap_or_default())
            });
        }
        let peers = Arc::clone(&self.peers);
        Box::pin(async move {
            let question = Message::StandingQuery(StandingQuery { partitions });
            let standings = match peers.ask(broker, question, within).await {
                Ok(Message::StandingAnswers(answers)) => answers.standings,
                Ok(other) => {
                    tracing::warn!(%broker, answer = ?other, "a broker answered what was not asked");
                    Vec::new()
                }
                Err(error) => {
                    tracing::info!(%broker, %error, "a candidate for leadership is not heard of, and ranks last");
                    Vec::new()
                }
            };
            (broker, standings)
        })
    }
}

/// Waits for all of them together.
async fn all(mut answers: Vec<Answer>) -> Vec<(BrokerId, Vec<Standing>)> {
    let mut done = Vec::with_capacity(answers.len());
    poll_fn(|context| {
        answers.retain_mut(|answer| match answer.as_mut().poll(context) {
            Poll::Ready(told) => {
                done.push(told);
                false
            }
            Poll::Pending => true,
        });
        if answers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done
}
