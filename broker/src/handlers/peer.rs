//! What other brokers ask: one file a kind of request, and the one place that tells them apart.
//!
//! Deliberately absent: connections and who may ask ([`crate::peers`]).

use std::sync::Arc;

use felix_control::agent::Agent;
use felix_protocol::peer::Message;
use felix_protocol::peer::bootstrap::{Bootstrap, Restart};
use felix_protocol::peer::hello::Hello;
use felix_protocol::peer::rebuild::Rebuild;
use tokio::net::TcpListener;

use crate::partitions::Partitions;
use crate::peers::{Handler, Peers, Reply, Setup};
use crate::tasks;

mod ship;
mod standing;

/// The table.
struct Handlers {
    partitions: Arc<Partitions>,
    agent: Agent,
}

impl Handlers {
    fn restart(&self, restart: Restart, rebuild: bool, reply: Reply) {
        ship::restart(&self.partitions, self.agent.view().revision(), restart, rebuild, reply);
    }
}

impl Handler for Handlers {
    fn handle(&self, _from: &Hello, request: Message, reply: Reply) {
        match request {
            Message::StandingQuery(query) => standing::answer(&self.partitions, query, reply),
            Message::Ship(ship) => ship::take(&self.partitions, self.agent.view().revision(), ship, &reply),
            Message::Bootstrap(Bootstrap(restart)) => self.restart(restart, false, reply),
            Message::Rebuild(Rebuild(restart)) => self.restart(restart, true, reply),
            // No connection hands these on.
            Message::Hello(_)
            | Message::UnsupportedKind(_)
            | Message::Answers(_)
            | Message::StandingAnswers(_) => {}
        }
    }
}

/// Dials the other brokers, answers them, and has them asked about their copies. Must be called on the runtime.
pub fn start(setup: Setup, listener: TcpListener, agent: &Agent, partitions: &Arc<Partitions>) -> Arc<Peers> {
    let peers = Peers::start(setup);
    let handlers = Arc::new(Handlers { partitions: Arc::clone(partitions), agent: agent.clone() });
    tasks::spawn("peer listener", Arc::clone(&peers).serve(listener, handlers));
    partitions.ship_over(Arc::clone(&peers));
    agent.ask_by(Arc::new(standing::Inquiries {
        own: agent.node(),
        peers: Arc::clone(&peers),
        partitions: Arc::clone(partitions),
    }));
    peers
}
