//! How often the log hears of peers that misbehave: a few times a second, and how often it was kept quiet.

use std::time::Duration;

use felix_protocol::time::MonoTime;
use parking_lot::Mutex;

/// Lines in one second.
const MOST_LINES: u32 = 10;

/// Counts lines of one kind.
#[derive(Default)]
pub struct Chatter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    since: Option<MonoTime>,
    lines: u32,
    withheld: u64,
}

impl Chatter {
    /// Whether a line may be written now; if so, how many were withheld before it.
    pub fn may_tell(&self, now: MonoTime) -> Option<u64> {
        let mut state = self.state.lock();
        if state.since.is_none_or(|since| now.since(since) >= Duration::from_secs(1)) {
            state.since = Some(now);
            state.lines = 0;
        }
        if state.lines >= MOST_LINES {
            state.withheld += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_ten_lines_a_second_and_a_number() {
        let chatter = Chatter::default();
        let told = (0..1000).filter(|_| chatter.may_tell(MonoTime(5)).is_some()).count();
        assert_eq!(told, 10);
        assert_eq!(chatter.may_tell(MonoTime(5).after(Duration::from_secs(1))), Some(990));
        assert_eq!(chatter.may_tell(MonoTime(5).after(Duration::from_secs(2))), Some(0));
    }
}
