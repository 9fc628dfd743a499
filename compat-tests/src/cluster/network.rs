//! Addresses for the nodes of a cluster, and cuts between them.
//!
//! With namespaces, every node has a network of its own behind a bridge, with its own address; the harness and the clients that it starts sit
//! on the bridge itself. On loopback everything shares 127.0.0.1, and nothing can be cut.
//!
//! A cut from A to B makes A address what it sends to B to a network card that nobody has. That is as silent as a cable pulled out: nobody is
//! told, established connections just stop. A blackhole route would answer the sender at once, and with reverse path filtering it
//! cuts the other direction, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::raw::stage::skip;

/// Where namespaces are kept.
const NAMESPACES: &str = "/run/netns";
/// What the names of all our namespaces and links begin with.
const OURS: &str = "fx";
/// A network card that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";
/// The range for measurements between networks (RFC 2544): nobody has it at home.
const RANGES: [(u8, u8); 2] = [(198, 18), (198, 19)];

/// A place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The harness and the clients that it starts.
    Clients,
    /// A broker by its id.
    Broker(i32),
    /// A member of etcd, counted from 0.
    Etcd(usize),
}

/// What kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every node in a namespace of its own. Needs root.
    Namespaces,
    /// All on 127.0.0.1.
    Loopback,
}

/// A network; goes with all that is in it.
pub struct Network {
    bridge: Option<Bridge>,
    hosts: BTreeMap<Place, Host>,
    cuts: BTreeSet<(Place, Place)>,
}

struct Bridge {
    name: String,
    subnet: [u8; 3],
}

#[derive(Debug, Clone)]
struct Host {
    address: Ipv4Addr,
    /// `None` for places outside of namespaces.
    namespace: Option<String>,
}

impl Network {
    /// A network with nobody in it but the clients.
    pub fn open(kind: Kind) -> Result<Self> {
        let mut network = Self { bridge: None, hosts: BTreeMap::new(), cuts: BTreeSet::new() };
        let clients = match kind {
            Kind::Loopback => Ipv4Addr::LOCALHOST,
            Kind::Namespaces => {
                if !rustix::process::geteuid().is_root() {
                    return skip("network namespaces need root");
                }
                let bridge = Bridge::make()?;
                let address = bridge.address(1);
                network.bridge = Some(bridge);
                address
            }
        };
        network.hosts.insert(Place::Clients, Host { address: clients, namespace: None });
        Ok(network)
    }

    /// Gives a place to a node.
    pub fn add(&mut self, place: Place) -> Result<Ipv4Addr> {
        if let Some(host) = self.hosts.get(&place) {
            return Ok(host.address);
        }
        let host = match &self.bridge {
            None => Host { address: Ipv4Addr::LOCALHOST, namespace: None },
            Some(bridge) => bridge.host(self.hosts.len())?,
        };
        let address = host.address;
        self.hosts.insert(place, host);
        Ok(address)
    }

    /// The address of a place.
    pub fn address(&self, place: Place) -> Result<Ipv4Addr> {
        Ok(self.host(place)?.address)
    }

    fn host(&self, place: Place) -> Result<&Host> {
        self.hosts.get(&place).with_context(|| format!("{place:?} is not in the network"))
    }

    /// What starts a program at a place: the words in front of it.
    pub fn prefix(&self, place: Place) -> Result<Vec<String>> {
        let namespace = self.host(place)?.namespace.as_ref();
        Ok(namespace.map_or_else(Vec::new, |name| ["ip", "netns", "exec", name].map(str::to_owned).to_vec()))
    }

    /// Runs something on a thread that lives at a place: its sockets are there.
    pub fn within<T: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let namespace = self.host(place)?.namespace.clone();
        let thread = std::thread::spawn(move || {
            if let Some(name) = namespace {
                let namespace = File::open(Path::new(NAMESPACES).join(name))?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            work()
        });
        thread.join().map_err(|_| anyhow!("what ran at {place:?} panicked"))?
    }

    /// From now on nothing that `from` sends reaches `to`; what `to` sends still arrives.
    pub fn cut(&mut self, from: Place, to: Place) -> Result<()> {
        if self.bridge.is_none() {
            bail!("on loopback nothing can be cut");
        }
        if self.cuts.insert((from, to)) {
            let target = self.address(to)?.to_string();
            self.neighbours(from, &["replace", &target, "lladdr", NOBODY, "nud", "permanent"])?;
        }
        Ok(())
    }

    /// Cuts both ways.
    pub fn cut_both(&mut self, one: Place, other: Place) -> Result<()> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    /// Ends the cuts between two places, in both directions.
    pub fn heal(&mut self, one: Place, other: Place) -> Result<()> {
        for (from, to) in [(one, other), (other, one)] {
            if self.cuts.remove(&(from, to)) {
                let target = self.address(to)?.to_string();
                self.neighbours(from, &["del", &target])?;
            }
        }
        Ok(())
    }

    /// Ends all cuts.
    pub fn heal_all(&mut self) -> Result<()> {
        for (from, to) in self.cuts.clone() {
            self.heal(from, to)?;
        }
        Ok(())
    }

    fn neighbours(&self, at: Place, words: &[&str]) -> Result<()> {
        let bridge = self.bridge.as_ref().context("there is no bridge")?;
        let (action, rest) = words.split_first().context("nothing to do")?;
        let (namespace, device) = match &self.host(at)?.namespace {
            Some(name) => (vec!["-n", name.as_str()], "eth0"),
            None => (Vec::new(), bridge.name.as_str()),
        };
        ip(&[&namespace[..], &["neigh", action], rest, &["dev", device]].concat())
    }
}

use std::os::fd::AsFd;

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(bridge) = &self.bridge {
            remove(&bridge.name);
        }
    }
}

impl Bridge {
    /// A bridge with a range of addresses that nobody on this machine uses.
    fn make() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", tag(std::process::id()), MADE.fetch_add(1, Ordering::Relaxed));
        // Two harnesses must not choose at the same time.
        let lock = File::create(std::env::temp_dir().join("felix-compat-networks.lock"))?;
        lock.lock()?;
        let used = told(&["-4", "-o", "addr", "show"])?;
        let mut subnets = RANGES.iter().flat_map(|(a, b)| (0..=255).map(move |c| [*a, *b, c]));
        let subnet = subnets.find(|[a, b, c]| !used.contains(&format!(" {a}.{b}.{c}.")));
        let bridge = Self { name, subnet: subnet.context("no range of addresses is free")? };
        if let Err(error) = ip(&["link", "add", &bridge.name, "type", "bridge"]) {
            return skip(&format!("this machine does not allow networks of our own: {error:#}"));
        }
        let address = format!("{}/24", bridge.address(1));
        ip(&["addr", "add", &address, "dev", &bridge.name])?;
        ip(&["link", "set", &bridge.name, "up"])?;
        Ok(bridge)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, last)
    }

    /// A namespace on this bridge.
    fn host(&self, number: usize) -> Result<Host> {
        let name = format!("{}-{number}", self.name);
        let address = self.address(u8::try_from(10 + number)?);
        if let Err(error) = ip(&["netns", "add", &name]) {
            return skip(&format!("this machine does not allow network namespaces: {error:#}"));
        }
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["link", "set", &name, "master", &self.name, "up"])?;
        ip(&["-n", &name, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        for device in ["lo", "eth0"] {
            ip(&["-n", &name, "link", "set", device, "up"])?;
        }
        Ok(Host { address, namespace: Some(name) })
    }
}

/// What the names of one harness begin with. Names of links are short: the number of its process in as few letters as can be.
pub fn tag(process: u32) -> String {
    let mut digits = Vec::new();
    let mut left = process;
    while left > 0 {
        digits.extend(char::from_digit(left % 36, 36));
        left /= 36;
    }
    digits.iter().rev().fold(OURS.to_owned(), |tag, digit| format!("{tag}{digit}"))
}

/// The process whose tag a name begins with.
fn owner(name: &str) -> Option<u32> {
    let (tag, _) = name.strip_prefix(OURS)?.split_once('-')?;
    u32::from_str_radix(tag, 36).ok()
}

/// Removes the namespaces and links whose name is this or goes on with a dash. Whoever is in them must have ended.
pub fn remove(start: &str) {
    let behind = format!("{start}-");
    let is_meant = |name: &str| name == start || name.starts_with(&behind);
    for name in names(NAMESPACES).into_iter().filter(|name| is_meant(name)) {
        // Another clean-up may be at it; what is left is found by the next sweep.
        let _ = ip(&["netns", "del", &name]);
    }
    for name in names("/sys/class/net").into_iter().filter(|name| is_meant(name)) {
        // A link goes with its namespace, a moment later.
        let _ = ip(&["link", "del", &name]);
    }
}

/// Removes what harnesses left that are no more.
pub fn sweep() {
    let names = [names(NAMESPACES), names("/sys/class/net")].concat();
    let owners: BTreeSet<u32> = names.iter().filter_map(|name| owner(name)).collect();
    for process in owners.into_iter().filter(|process| !lives(*process)) {
        remove(&tag(process));
    }
}

/// Whether a harness with this number runs.
fn lives(process: u32) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{process}/comm"));
    // The number may have gone to somebody else's process.
    comm.is_ok_and(|name| name.starts_with("compat"))
}

fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(PathBuf::from(folder)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn run(arguments: &[&str]) -> Result<Output> {
    let output = Command::new("ip").args(arguments).output().context("starting ip")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}

fn ip(arguments: &[&str]) -> Result<()> {
    run(arguments).map(drop)
}

fn told(arguments: &[&str]) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(arguments)?.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_whose_it_is_and_is_short_enough() {
        for process in [1, 36, 4_194_303] {
            let name = format!("{}-12-3", tag(process));
            assert_eq!(owner(&name), Some(process), "{name}");
            assert!(format!("{}-999-12", tag(process)).len() <= 15);
        }
        assert_eq!(owner("eth0"), None);
        assert_eq!(owner("fx"), None);
    }
}
