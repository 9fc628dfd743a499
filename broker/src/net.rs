//! Sockets: accepting, framing, and the order of answers. Knows nothing of what requests mean.

mod connection;
mod incoming;
mod listener;
mod muting;
mod outgoing;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::chatter::Chatter;

pub use listener::{Bound, SocketSetup, bind, serve};

/// How many connections there are, in all and by address.
#[derive(Default)]
pub struct Census {
    all: AtomicUsize,
    emptied: Notify,
    refused: Chatter,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `max.connections`.
    TooMany,
    /// `max.connections.per.ip`.
    TooManyFromOneAddress,
}

impl Refused {
    /// The metric's label.
    fn reason(self) -> &'static str {
        match self {
            Refused::TooMany => "max.connections",
            Refused::TooManyFromOneAddress => "max.connections.per.ip",
        }
    }
}

/// One connection's place; dropping it gives the place back.
pub struct Place {
    census: Arc<Census>,
    address: IpAddr,
}

impl Census {
    /// Takes a place for a connection from `address`.
    pub fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        most: usize,
        most_from_one: usize,
    ) -> Result<Place, Refused> {
        let mut by_address = self.by_address.lock();
        if self.all.load(Ordering::Relaxed) >= most {
            return Err(Refused::TooMany);
        }
        let count = by_address.get(&address).copied().unwrap_or(0);
        if count >= most_from_one {
            return Err(Refused::TooManyFromOneAddress);
        }
        by_address.insert(address, count + 1);
        // Counted under the lock, so that the limit is exact.
        self.all.fetch_add(1, Ordering::Relaxed);
        Ok(Place { census: Arc::clone(self), address })
    }

    /// Connections now.
    pub fn count(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Waits until there are none.
    pub async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.census.by_address.lock();
        if self.census.all.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.census.emptied.notify_waiters();
        }
        match by_address.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_address_and_in_all() {
        let census = Arc::new(Census::default());
        let (one, two) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let a = census.enter(one, 3, 2).unwrap();
        let _b = census.enter(one, 3, 2).unwrap();
        assert_eq!(census.enter(one, 3, 2).err(), Some(Refused::TooManyFromOneAddress));
        let _c = census.enter(two, 3, 2).unwrap();
        assert_eq!(census.enter(two, 3, 2).err(), Some(Refused::TooMany));
        drop(a);
        assert_eq!(census.count(), 2);
        let _d = census.enter(two, 3, 2).unwrap();
        drop((_b, _c, _d));
        assert_eq!(census.count(), 0);
        assert!(census.by_address.lock().is_empty());
    }
}
