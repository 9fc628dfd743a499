//! LeaveGroup: members go, or are sent away by an operator who names their instance id.

use std::sync::Arc;

use crate::error::GroupError;
use crate::group::Group;
use crate::machine::Turn;
use crate::reply::Left;
use crate::request::Leaving;

impl Group {
    pub(crate) fn leave(&mut self, leaving: &[Leaving], turn: &mut Turn<'_>) -> Vec<Left> {
        let mut anyone = false;
        let mut left = Vec::with_capacity(leaving.len());
        for leaver in leaving {
            let result = self.who_leaves(leaver).map(|id| {
                anyone = true;
                if let Some(mut member) = self.take_member(&id, turn) {
                    self.refuse_parked(&mut member, GroupError::UnknownMember, turn);
                }
            });
            left.push(Left { member: leaver.member.clone(), instance: leaver.instance.clone(), result });
        }
        if anyone {
            self.after_removal("a member left", turn);
        }
        left
    }

    fn who_leaves(&self, leaver: &Leaving) -> Result<Arc<str>, GroupError> {
        if leaver.member.is_empty() {
            let member = leaver.instance.as_ref().and_then(|instance| self.instances.get(instance));
            return member.cloned().ok_or(GroupError::UnknownMember);
        }
        if !self.pending.contains_key(&leaver.member) {
            self.validate(&leaver.member, leaver.instance.as_ref())?;
        }
        Ok(leaver.member.clone())
    }
}

/// What members learn that leave a group which does not exist.
pub(crate) fn left_nothing(leaving: &[Leaving]) -> Vec<Left> {
    let result = Err(GroupError::UnknownMember);
    leaving
        .iter()
        .map(|leaver| Left { member: leaver.member.clone(), instance: leaver.instance.clone(), result })
        .collect()
}
