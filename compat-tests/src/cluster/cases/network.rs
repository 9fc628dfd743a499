//! Cases about the harness itself: what it says about cuts must be so.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::network::{Kind, Network, Place};
use crate::cluster::stage::Stage;
use crate::raw::expect::equal;
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "cuts-are-what-they-say",
    proves: "the harness itself: a cut from one node to another stops every packet in that direction and none in the other, for every pair \
             of nodes and the clients, and healing ends it",
    seconds: 60,
    run: cuts_are_what_they_say,
}];

const PORT: u16 = 4_000;
/// How long packets may take that are not cut off.
const ARRIVE: Duration = Duration::from_secs(5);
/// From one look at a socket to the next.
const LOOK: Duration = Duration::from_millis(1);

/// One socket a place.
struct Sockets {
    all: Vec<(Place, Ipv4Addr, UdpSocket)>,
    round: u32,
}

impl Sockets {
    fn open(network: &Network, places: &[Place]) -> Result<Self> {
        let open = |place: &Place| {
            let address = network.address(*place)?;
            let socket = network.within(*place, move || Ok(UdpSocket::bind((address, PORT))?))?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok((*place, address, socket))
        };
        Ok(Self { all: places.iter().map(open).collect::<Result<_>>()?, round: 0 })
    }

    /// Sends from everywhere to everywhere. All arrives but what is missing from `wanted`: that was sent first, so it would have arrived
    /// before the rest.
    fn connect(&mut self, what: &str, wanted: &BTreeSet<(Place, Place)>) -> Result<()> {
        self.round += 1;
        let pairs = || self.all.iter().flat_map(|from| self.all.iter().map(move |to| (from, to)));
        let (first, last): (Vec<_>, Vec<_>) = pairs()
            .filter(|(from, to)| from.0 != to.0)
            .partition(|(from, to)| !wanted.contains(&(from.0, to.0)));
        for ((_, _, sender), (_, address, _)) in first.into_iter().chain(last) {
            sender.send_to(&self.round.to_be_bytes(), (*address, PORT)).context("sending")?;
        }
        let mut arrived = BTreeSet::new();
        wait::until(what, ARRIVE, || {
            for (to, _, receiver) in &self.all {
                let mut buffer = [0; 4];
                while let Ok((_, from)) = receiver.recv_from(&mut buffer) {
                    let sender = self.all.iter().find(|(_, address, _)| *address == from.ip());
                    let (sender, ..) = sender.context("a packet of somebody else")?;
                    // One of the round before may have been late.
                    if u32::from_be_bytes(buffer) == self.round {
                        arrived.insert((*sender, *to));
                    }
                }
            }
            Ok(arrived.is_superset(wanted).then_some(()))
        })
        .with_context(|| format!("{arrived:?} arrived"))?;
        equal(what, &arrived, wanted)
    }
}

fn cuts_are_what_they_say(_: &Stage) -> Result<String> {
    let mut network = Network::open(Kind::Namespaces)?;
    let places = [Place::Clients, Place::Broker(1), Place::Broker(2), Place::Etcd(0)];
    for place in &places[1..] {
        network.add(*place)?;
    }
    let mut sockets = Sockets::open(&network, &places)?;
    let all: BTreeSet<(Place, Place)> = places
        .iter()
        .flat_map(|from| places.iter().filter(move |to| *to != from).map(move |to| (*from, *to)))
        .collect();
    sockets.connect("connected at first", &all)?;
    for (from, to) in &all {
        network.cut(*from, *to)?;
        let mut left = all.clone();
        left.remove(&(*from, *to));
        sockets.connect(&format!("connected with {from:?} cut from {to:?}"), &left)?;
        if from < to {
            network.cut_both(*from, *to)?;
            left.remove(&(*to, *from));
            sockets.connect(&format!("connected with {from:?} and {to:?} cut"), &left)?;
        }
        network.heal(*from, *to)?;
        sockets.connect("connected after healing", &all)?;
    }
    network.cut_both(places[1], places[2])?;
    network.cut(places[3], places[0])?;
    network.heal_all()?;
    sockets.connect("connected after healing all", &all)?;
    Ok(format!("{} pairs", all.len()))
}
