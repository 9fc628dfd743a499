//! Whether a disk that was full has room again.

/// Bytes by which the free space must have grown for a try before its time.
const ROOM: u64 = 64 << 10;

/// The least free space seen since a try failed.
pub(super) struct Room {
    least: Option<u64>,
}

impl Room {
    /// Begins with what is free now; `None` where the system does not say.
    pub(super) fn new(free: Option<u64>) -> Room {
        Room { least: free }
    }

    /// Whether a try is worth it, by what is free now. Space that others fill and give back in between does not count
    /// against it: what is asked is whether there is more than when there was least.
    pub(super) fn has_come(&mut self, free: Option<u64>) -> bool {
        let grown = free.zip(self.least).is_some_and(|(now, least)| now > least.saturating_add(ROOM));
        self.least = self.least.min(free).or(free);
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_grew_beyond_the_least() {
        let mut room = Room::new(Some(10_000));
        assert!(!room.has_come(Some(10_000 + ROOM)), "a file's end here and there is no room");
        assert!(!room.has_come(Some(0)), "others fill what is left");
        assert!(!room.has_come(Some(ROOM)));
        assert!(room.has_come(Some(ROOM + 1)));
        assert!(room.has_come(Some(u64::MAX)), "until the try comes, it stays so");
    }

    #[test]
    fn a_system_that_does_not_say_leaves_it_to_time() {
        let mut room = Room::new(None);
        assert!(!room.has_come(None));
        assert!(!room.has_come(Some(1)), "the first figure");
        assert!(room.has_come(Some(2 + ROOM)));
        assert!(!room.has_come(None));
    }
}
