//! Client quotas (KIP-13, 124, 546, 599, 612): who may do how much, as operators say it and as a broker looks it up.
//!
//! An entity is a user, a client id, both, or an address; each may stand for all that have no entry of their own. An
//! entity's quotas are one key. Deliberately absent: measuring and throttling, which is each broker's business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use thiserror::Error;

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::Quotas;
use crate::view::View;

/// The most entities with quotas.
pub const MOST_ENTITIES: usize = 10_000;
/// The longest name of a user or client.
pub const MOST_NAME_BYTES: usize = 1_024;

/// Kafka's name of a kind of entity.
pub const USER: &str = "user";
/// The same.
pub const CLIENT_ID: &str = "client-id";
/// The same.
pub const IP: &str = "ip";

/// Who of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// All who have no entry of their own.
    Default,
    /// This one.
    Named(String),
}

impl Who {
    /// As clients say it: null is the default.
    pub fn name(&self) -> Option<&str> {
        match self {
            Who::Default => None,
            Who::Named(name) => Some(name),
        }
    }
}

/// Whose quotas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entity {
    /// A user's.
    User(Who),
    /// A client id's, whoever uses it.
    Client(Who),
    /// A user's under one client id.
    UserClient(Who, Who),
    /// An address's.
    Ip(Who),
}

/// What may be limited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Kafka's name of it.
    pub name: &'static str,
    /// Which numbers it may be.
    pub number: Number,
    /// Of addresses, instead of users and clients.
    pub of_ip: bool,
}

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Any.
    Double,
    /// Whole ones up to this.
    Whole(f64),
}

const LONG: Number = Number::Whole(9_223_372_036_854_775_807.0);
const INT: Number = Number::Whole(2_147_483_647.0);

/// All that may be limited.
pub const LIMITS: &[Limit] = &[
    Limit { name: "producer_byte_rate", number: LONG, of_ip: false },
    Limit { name: "consumer_byte_rate", number: LONG, of_ip: false },
    Limit { name: "request_percentage", number: Number::Double, of_ip: false },
    Limit { name: "controller_mutation_rate", number: Number::Double, of_ip: false },
    Limit { name: "connection_creation_rate", number: INT, of_ip: true },
];

/// Why quotas are not altered. All of it is an invalid request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Nobody.
    #[error("Invalid empty client quota entity")]
    Nobody,
    /// A kind twice.
    #[error("Invalid client quota entity, duplicate entity entry {0}")]
    KindTwice(String),
    /// A kind that is none.
    #[error("Unhandled client quota entity type: {0}")]
    Kind(String),
    /// Kinds that do not go together.
    #[error("Invalid client quota entity, an ip goes with no other type")]
    Combination,
    /// An empty name.
    #[error("Empty {0} not supported")]
    Empty(String),
    /// A long one.
    #[error("{0} is longer than {MOST_NAME_BYTES} bytes")]
    Long(String),
    /// No address. Kafka resolves host names too; here one would mean another address tomorrow.
    #[error("{0} is not a valid IP")]
    Address(String),
    /// An entity twice in one request.
    #[error("Ignoring duplicate entity")]
    EntityTwice,
    /// A limit twice for one entity.
    #[error("Duplicate quota key {0}, not updating quota for this entity")]
    LimitTwice(String),
    /// Not a limit, or none for this kind of entity.
    #[error("Invalid configuration key {0}")]
    Limit(String),
    /// Zero, less, or no number.
    #[error("Quota {0} must be greater than 0")]
    NotPositive(String),
    /// Too large.
    #[error("Proposed value for {0} is too large")]
    Large(String),
    /// Not whole.
    #[error("{0} cannot be a fractional value")]
    Fraction(String),
    /// Too many entities.
    #[error("quotas are kept for at most {MOST_ENTITIES} entities")]
    Full,
}

impl Entity {
    /// The entity that is made of these kinds and names; no name is the default.
    pub fn of(parts: &[(String, Option<String>)]) -> Result<Entity, Refused> {
        let mut kinds: BTreeMap<&str, Who> = BTreeMap::new();
        for (kind, name) in parts {
            if !matches!(kind.as_str(), USER | CLIENT_ID | IP) {
                return Err(Refused::Kind(kind.clone()));
            }
            let who = match name {
                None => Who::Default,
                Some(name) if name.is_empty() => return Err(Refused::Empty(kind.clone())),
                Some(name) if name.len() > MOST_NAME_BYTES => return Err(Refused::Long(kind.clone())),
                Some(name) if kind == IP => Who::Named(address(name)?),
                Some(name) => Who::Named(name.clone()),
            };
            if kinds.insert(kind, who).is_some() {
                return Err(Refused::KindTwice(kind.clone()));
            }
        }
        match (kinds.remove(USER), kinds.remove(CLIENT_ID), kinds.remove(IP)) {
            (Some(user), Some(client), None) => Ok(Entity::UserClient(user, client)),
            (Some(user), None, None) => Ok(Entity::User(user)),
            (None, Some(client), None) => Ok(Entity::Client(client)),
            (None, None, Some(ip)) => Ok(Entity::Ip(ip)),
            (None, None, None) => Err(Refused::Nobody),
            (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => Err(Refused::Combination),
        }
    }

    /// Its kinds and names, as clients are told.
    pub fn parts(&self) -> Vec<(&'static str, Option<&str>)> {
        match self {
            Entity::User(user) => vec![(USER, user.name())],
            Entity::Client(client) => vec![(CLIENT_ID, client.name())],
            Entity::UserClient(user, client) => vec![(USER, user.name()), (CLIENT_ID, client.name())],
            Entity::Ip(ip) => vec![(IP, ip.name())],
        }
    }

    fn who(&self, kind: &str) -> Option<&Who> {
        match self {
            Entity::User(user) => (kind == USER).then_some(user),
            Entity::Client(client) => (kind == CLIENT_ID).then_some(client),
            Entity::UserClient(user, client) => match kind {
                USER => Some(user),
                CLIENT_ID => Some(client),
                _ => None,
            },
            Entity::Ip(ip) => (kind == IP).then_some(ip),
        }
    }
}

/// An address in its one form: an entry must be found whichever way a client spells it.
fn address(name: &str) -> Result<String, Refused> {
    let parsed: IpAddr = name.parse().map_err(|_| Refused::Address(name.to_owned()))?;
    Ok(parsed.to_canonical().to_string())
}

/// The entities of one request; what stands there twice is refused the second time.
pub fn entities(all: &[Vec<(String, Option<String>)>]) -> Vec<Result<Entity, Refused>> {
    let mut seen = BTreeSet::new();
    let one = |parts: &Vec<(String, Option<String>)>| {
        let entity = Entity::of(parts)?;
        if seen.insert(entity.clone()) { Ok(entity) } else { Err(Refused::EntityTwice) }
    };
    all.iter().map(one).collect()
}

/// Sets limits of one entity, or removes those without a value; `None` when all is so already.
pub fn alter(
    view: &View,
    entity: &Entity,
    ops: &[(String, Option<f64>)],
) -> Result<Option<Decision>, Refused> {
    let before = view.quotas_of(entity);
    let mut after = before.map(|at| at.value.clone()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (name, value) in ops {
        if !seen.insert(name) {
            return Err(Refused::LimitTwice(name.clone()));
        }
        match value {
            Some(value) => {
                check(entity, name, *value)?;
                after.limits.insert(name.clone(), *value);
            }
            None => {
                after.limits.remove(name);
            }
        }
    }
    if before.is_none() && !after.limits.is_empty() && view.quotas().count() >= MOST_ENTITIES {
        return Err(Refused::Full);
    }
    if before.map_or(after.limits.is_empty(), |at| at.value == after) {
        return Ok(None);
    }
    let key = Key::Quotas(entity.clone());
    let decision = Decision::new().at(key.clone(), view.revision_of(&key));
    Ok(Some(if after.limits.is_empty() { decision.delete(key) } else { decision.put(key, &after) }))
}

fn check(entity: &Entity, name: &str, value: f64) -> Result<(), Refused> {
    let of_ip = matches!(entity, Entity::Ip(_));
    let limit = LIMITS.iter().find(|limit| limit.name == name && limit.of_ip == of_ip);
    let limit = limit.ok_or_else(|| Refused::Limit(name.to_owned()))?;
    if value.is_nan() || value <= 0.0 {
        return Err(Refused::NotPositive(name.to_owned()));
    }
    match limit.number {
        // Infinity is no rate; the largest number there is means the same.
        Number::Double if value.is_infinite() => Err(Refused::Large(name.to_owned())),
        Number::Double => Ok(()),
        Number::Whole(most) if value > most => Err(Refused::Large(name.to_owned())),
        Number::Whole(_) if value.fract() > 1e-6 => Err(Refused::Fraction(name.to_owned())),
        Number::Whole(_) => Ok(()),
    }
}

/// What a description asks of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// This one, or the default.
    Exactly(Who),
    /// Any.
    Any,
}

/// Why a description is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterRefused {
    /// A kind without a name.
    #[error("Invalid empty entity type.")]
    Empty,
    /// A kind twice.
    #[error("Entity type {0} cannot appear more than once in the filter.")]
    Twice(String),
    /// A kind that is none. Kafka answers that the version is not supported.
    #[error("Unsupported entity type {0}")]
    Kind(String),
    /// Kinds that do not go together.
    #[error(
        "Invalid entity filter component combination. IP filter component should not be used with user or clientId \
         filter component."
    )]
    Combination,
}

/// Which entities are described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    wanted: BTreeMap<String, Match>,
    strict: bool,
}

impl Filter {
    /// Entities that have all of these kinds, matching; `strict`: and no others.
    pub fn new(components: Vec<(String, Match)>, strict: bool) -> Result<Filter, FilterRefused> {
        let mut wanted = BTreeMap::new();
        for (kind, matching) in components {
            if kind.is_empty() {
                return Err(FilterRefused::Empty);
            }
            if wanted.contains_key(&kind) {
                return Err(FilterRefused::Twice(kind));
            }
            if !matches!(kind.as_str(), USER | CLIENT_ID | IP) {
                return Err(FilterRefused::Kind(kind));
            }
            // As it is kept.
            let matching = match matching {
                Match::Exactly(Who::Named(name)) if kind == IP => {
                    Match::Exactly(Who::Named(address(&name).unwrap_or(name)))
                }
                Match::Exactly(_) | Match::Any => matching,
            };
            wanted.insert(kind, matching);
        }
        if wanted.contains_key(IP) && wanted.len() > 1 {
            return Err(FilterRefused::Combination);
        }
        Ok(Filter { wanted, strict })
    }

    fn matches(&self, entity: &Entity) -> bool {
        let all = self.wanted.iter().all(|(kind, matching)| match (entity.who(kind), matching) {
            (Some(who), Match::Exactly(wanted)) => who == wanted,
            (Some(_), Match::Any) => true,
            (None, Match::Exactly(_) | Match::Any) => false,
        });
        all && (!self.strict || entity.parts().len() == self.wanted.len())
    }
}

/// The entities that match, with their limits.
pub fn describe<'a>(view: &'a View, filter: &'a Filter) -> impl Iterator<Item = (&'a Entity, &'a Quotas)> {
    view.quotas().filter(|(entity, _)| filter.matches(entity))
}

/// The limit that binds a user's client, and whose it is: the nearest entity that says anything of it. All that one entity
/// binds share its limit only if they are named in it; a default gives each of them its own.
pub fn binding(view: &View, user: &str, client: &str, limit: &str) -> Option<(Entity, f64)> {
    let (user, client) = (Who::Named(user.to_owned()), Who::Named(client.to_owned()));
    let nearest = [
        Entity::UserClient(user.clone(), client.clone()),
        Entity::UserClient(user.clone(), Who::Default),
        Entity::User(user),
        Entity::UserClient(Who::Default, client.clone()),
        Entity::UserClient(Who::Default, Who::Default),
        Entity::User(Who::Default),
        Entity::Client(client),
        Entity::Client(Who::Default),
    ];
    first(view, nearest, limit)
}

/// The limit that binds an address.
pub fn binding_address(view: &View, address: IpAddr, limit: &str) -> Option<(Entity, f64)> {
    let own = Entity::Ip(Who::Named(address.to_canonical().to_string()));
    first(view, [own, Entity::Ip(Who::Default)], limit)
}

fn first<const N: usize>(view: &View, nearest: [Entity; N], limit: &str) -> Option<(Entity, f64)> {
    nearest.into_iter().find_map(|entity| {
        let value = *view.quotas_of(&entity)?.value.limits.get(limit)?;
        Some((entity, value))
    })
}

#[cfg(test)]
mod tests;
