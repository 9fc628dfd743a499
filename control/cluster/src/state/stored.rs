//! How identities are written in stored values. The protocol package knows nothing of serde.

use felix_protocol::ids::{BrokerId, Generation, LogId, SessionId, TopicId, Uuid, base64url};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A module for `#[serde(with)]` out of a form, a way there and a way back.
macro_rules! form {
    ($name:ident, $of:ty, $as:ty, $there:expr, $back:expr) => {
        pub mod $name {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$of, to: S) -> Result<S::Ok, S::Error> {
                let there: fn(&$of) -> $as = $there;
                there(value).serialize(to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$of, D::Error> {
                let back: fn($as) -> Option<$of> = $back;
                let form = <$as>::deserialize(from)?;
                back(form).ok_or_else(|| serde::de::Error::custom(concat!("not a ", stringify!($name))))
            }
        }
    };
}

/// Kafka's form of a uuid. [`TopicId::parse`] is the one parser of it.
fn parse_uuid(text: &str) -> Option<Uuid> {
    TopicId::parse(text).map(|id| id.0)
}

form!(broker, BrokerId, i32, |id| id.0, |number| Some(BrokerId(number)));
form!(brokers, Vec<BrokerId>, Vec<i32>, |ids| ids.iter().map(|id| id.0).collect(), |numbers| Some(
    numbers.into_iter().map(BrokerId).collect()
));
// In hexadecimal text: JSON readers elsewhere lose the low bits of large numbers.
form!(session, SessionId, String, |id| format!("{:016x}", id.0), |text| u64::from_str_radix(&text, 16)
    .ok()
    .map(SessionId));
form!(uuid, Uuid, String, |id| base64url(id.as_bytes()), |text| parse_uuid(&text));
form!(topic, TopicId, String, |id| id.to_string(), |text| TopicId::parse(&text));
form!(log, LogId, String, |id| id.to_string(), |text| parse_uuid(&text).map(LogId));
form!(log_option, Option<LogId>, Option<String>, |id| id.map(|id| id.to_string()), |text| match text {
    None => Some(None),
    Some(text) => parse_uuid(&text).map(LogId).map(Some),
});
form!(generation, Generation, u32, |generation| generation.number(), Generation::new);
form!(
    generation_option,
    Option<Generation>,
    Option<u32>,
    |generation| generation.map(Generation::number),
    |number| match number {
        None => Some(None),
        Some(number) => Generation::new(number).map(Some),
    }
);
form!(
    limits,
    std::collections::BTreeMap<String, f64>,
    std::collections::BTreeMap<String, String>,
    |all| all.iter().map(|(name, value)| (name.clone(), value.to_string())).collect(),
    |all| all.into_iter().map(|(name, text)| text.parse().ok().map(|value| (name, value))).collect()
);
form!(
    assignments,
    std::collections::BTreeMap<i32, Vec<BrokerId>>,
    std::collections::BTreeMap<i32, Vec<i32>>,
    |all| all.iter().map(|(at, ids)| (*at, ids.iter().map(|id| id.0).collect())).collect(),
    |all| Some(
        all.into_iter().map(|(at, ids)| (at, ids.into_iter().map(BrokerId).collect())).collect()
    )
);

/// Before any recovery: not written, so that older versions write what they read.
pub fn is_zero(generation: &Generation) -> bool {
    *generation == Generation::ZERO
}

/// The same of an epoch.
pub fn is_none(epoch: &u64) -> bool {
    *epoch == 0
}

/// What a generation is that was not written.
pub fn zero() -> Generation {
    Generation::ZERO
}
