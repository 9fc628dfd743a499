//! Changing overrides. What an edit means is decided here; whether a name or value is legal, by the config
//! table.

use thiserror::Error;

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::Overrides;
use crate::topics::UnknownTopic;
use crate::view::{ConfigScope, View};

/// Whose configs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigTarget {
    /// A topic's, by name.
    Topic(String),
    /// A broker's, the cluster's or a group's.
    Scope(ConfigScope),
}

/// One step of an incremental change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOp {
    /// The name gets this value.
    Set(String),
    /// The name falls back to its default.
    Delete,
    /// These items join the list. `default` is the list where the name is not set.
    Append {
        /// What joins.
        items: Vec<String>,
        /// What the name means unset.
        default: Vec<String>,
    },
    /// These items leave the list.
    Subtract {
        /// What leaves.
        items: Vec<String>,
        /// What the name means unset.
        default: Vec<String>,
    },
}

/// Why an edit is not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EditRefused {
    /// There is no such topic.
    #[error(transparent)]
    Unknown(#[from] UnknownTopic),
    /// The edit itself says no.
    #[error("{0}")]
    Refused(String),
}

/// The overrides after the steps, in their order.
#[must_use]
pub fn incremental(current: &Overrides, steps: &[(String, ConfigOp)]) -> Overrides {
    let mut after = current.clone();
    for (name, op) in steps {
        let list = |default: &[String]| match after.get(name) {
            Some(value) => items(value),
            None => default.to_vec(),
        };
        match op {
            ConfigOp::Set(value) => {
                after.insert(name.clone(), value.clone());
            }
            ConfigOp::Delete => {
                after.remove(name);
            }
            ConfigOp::Append { items: more, default } => {
                let mut list = list(default);
                for item in more {
                    if !list.contains(item) {
                        list.push(item.clone());
                    }
                }
                after.insert(name.clone(), list.join(","));
            }
            ConfigOp::Subtract { items: fewer, default } => {
                let mut list = list(default);
                list.retain(|item| !fewer.contains(item));
                after.insert(name.clone(), list.join(","));
            }
        }
    }
    after
}

/// A list value's items.
pub fn items(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// An edit: the overrides that are to replace the given ones, or why not. It is run again when another
/// edit came first, so it must depend on nothing else.
pub type Edit<'a> = dyn FnMut(&Overrides) -> Result<Overrides, String> + 'a;

/// The decision that makes the edit; `None` when it changes nothing.
pub fn decide(
    view: &View,
    target: &ConfigTarget,
    edit: &mut Edit<'_>,
) -> Result<Option<Decision>, EditRefused> {
    match target {
        ConfigTarget::Topic(name) => {
            let topic = view.topic_named(name).ok_or(UnknownTopic)?;
            let after = edit(&topic.overrides).map_err(EditRefused::Refused)?;
            if after == *topic.overrides {
                return Ok(None);
            }
            let key = Key::Topic(topic.id);
            let mut value = topic.value();
            value.overrides = after;
            Ok(Some(Decision::new().at(key.clone(), topic.revision).put(key, &value)))
        }
        ConfigTarget::Scope(scope) => {
            let current = view.overrides(scope);
            let after = edit(current).map_err(EditRefused::Refused)?;
            if after == *current {
                return Ok(None);
            }
            let key = scope.key();
            let decision = Decision::new().at(key.clone(), view.overrides_at(scope));
            Ok(Some(if after.is_empty() { decision.delete(key) } else { decision.put(key, &after) }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(pairs: &[(&str, &str)]) -> Overrides {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn steps_are_taken_in_order() {
        let before = overrides(&[("retention.ms", "5"), ("cleanup.policy", "delete")]);
        let steps = [
            ("retention.ms".to_owned(), ConfigOp::Delete),
            (
                "cleanup.policy".to_owned(),
                ConfigOp::Append { items: list(&["compact", "delete"]), default: list(&["delete"]) },
            ),
            ("segment.ms".to_owned(), ConfigOp::Set("7".to_owned())),
        ];
        let after = incremental(&before, &steps);
        assert_eq!(after, overrides(&[("cleanup.policy", "delete,compact"), ("segment.ms", "7")]));
    }

    #[test]
    fn a_list_that_is_not_set_starts_from_its_default() {
        let step = |op| incremental(&Overrides::new(), &[("cleanup.policy".to_owned(), op)]);
        let default = list(&["delete"]);
        let appended = step(ConfigOp::Append { items: list(&["compact"]), default: default.clone() });
        assert_eq!(appended, overrides(&[("cleanup.policy", "delete,compact")]));
        let subtracted = step(ConfigOp::Subtract { items: list(&["delete"]), default });
        assert_eq!(subtracted, overrides(&[("cleanup.policy", "")]));
    }
}
