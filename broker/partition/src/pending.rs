//! The writers whose batches are in the log and who wait for a word, by the machine's tickets.

use felix_replication::waiters::Ticket;

/// A waiting writer with what it will be told.
#[derive(Debug)]
pub(crate) struct Waiting<W> {
    pub writer: W,
    pub base_offset: i64,
    pub last_offset: i64,
    pub duplicate: bool,
    pub max_timestamp: i64,
}

/// Tickets are places in a list; a place is used again once its writer was answered.
#[derive(Debug)]
pub(crate) struct Pending<W> {
    places: Vec<Option<Waiting<W>>>,
    free: Vec<u32>,
}

impl<W> Default for Pending<W> {
    fn default() -> Self {
        Pending { places: Vec::new(), free: Vec::new() }
    }
}

impl<W> Pending<W> {
    /// Gives memory back while nobody waits.
    pub fn give_back(&mut self) {
        if self.is_empty() {
            *self = Pending::default();
        }
    }

    pub fn put(&mut self, waiting: Waiting<W>) -> Ticket {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(None);
                // The machine admits 65,536 waiters at most.
                u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.places[place as usize] = Some(waiting);
        Ticket(place)
    }

    pub fn take(&mut self, ticket: Ticket) -> Option<Waiting<W>> {
        let waiting = self.places.get_mut(ticket.0 as usize)?.take()?;
        self.free.push(ticket.0);
        if self.free.len() == self.places.len() && self.places.capacity() > 64 {
            // A burst's memory is not kept by a partition that falls idle.
            *self = Pending::default();
        }
        Some(waiting)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Waiting<W>> {
        self.free = Vec::new();
        std::mem::take(&mut self.places).into_iter().flatten()
    }

    pub fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(writer: u32) -> Waiting<u32> {
        Waiting { writer, base_offset: 0, last_offset: 0, duplicate: false, max_timestamp: 0 }
    }

    #[test]
    fn a_ticket_is_good_once() {
        let mut pending = Pending::default();
        let (first, second) = (pending.put(waiting(1)), pending.put(waiting(2)));
        assert_eq!(pending.take(first).unwrap().writer, 1);
        assert!(pending.take(first).is_none());
        assert_eq!(pending.put(waiting(3)), first, "places are used again");
        assert_eq!(pending.take(second).unwrap().writer, 2);
        assert_eq!(pending.drain().map(|waiting| waiting.writer).collect::<Vec<_>>(), [3]);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_burst_leaves_no_memory_behind() {
        let mut pending = Pending::default();
        let tickets: Vec<_> = (0..1000).map(|writer| pending.put(waiting(writer))).collect();
        for ticket in tickets {
            assert!(pending.take(ticket).is_some());
        }
        assert!(pending.is_empty());
        assert_eq!(pending.places.capacity(), 0);
    }
}
