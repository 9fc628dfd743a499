//! A group is deleted.

use std::sync::Arc;

use crate::error::GroupError;
use crate::machine::Turn;

use super::Group;
use super::records::Record;
use super::state::State;

impl Group {
    /// Removes the group and its offsets, from the log too: tombstones for each record that the log may hold.
    pub(crate) fn delete(&mut self, turn: &mut Turn<'_>) -> Result<(), GroupError> {
        if self.state != State::Empty {
            return Err(GroupError::NonEmptyGroup);
        }
        let pending: Vec<Arc<str>> = self.pending.keys().cloned().collect();
        for id in pending {
            self.take_member(&id, turn);
        }
        let topics: Vec<Arc<str>> = self.durable.offsets().keys().cloned().collect();
        for topic in topics {
            self.remove_topic(&topic, turn);
        }
        self.write_tombstone(turn);
        // Nothing of the group is left; one that is made under this name again begins afresh.
        debug_assert!(self.is_nothing());
        Ok(())
    }

    pub(super) fn write_tombstone(&mut self, turn: &mut Turn<'_>) {
        self.write(Record::Group { group: self.id.clone(), value: None }, turn);
    }
}
