//! From text to values, and what is allowed.

use std::fmt;
use std::net::IpAddr;

use super::row::{Check, Kind, Row, State};

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A boolean.
    Boolean(bool),
    /// A whole number of any width.
    Number(i64),
    /// A fraction.
    Double(f64),
    /// A text, a class or a password.
    Text(String),
    /// Texts.
    List(Vec<String>),
}

/// The value as text, in the one form that is shown.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Boolean(value) => write!(f, "{value}"),
            Value::Number(value) => write!(f, "{value}"),
            // As Java prints them, so that 1 is "1.0" and the largest fraction does not fill a line.
            Value::Double(value) if value.abs() >= 1e7 => {
                let text = format!("{value:E}");
                if text.contains('.') { f.write_str(&text) } else { f.write_str(&text.replace('E', ".0E")) }
            }
            Value::Double(value) => write!(f, "{value:?}"),
            Value::Text(value) => f.write_str(value),
            Value::List(values) => f.write_str(&values.join(",")),
        }
    }
}

/// A value that a setting cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting.
    pub name: String,
    /// The value as it was given; hidden if the setting is a password.
    pub value: String,
    /// What is allowed instead, or why nothing else is: reads on from the name and the value.
    pub allowed: String,
    /// Whether the value is one that Kafka would take and we refuse.
    pub refused: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = \"{}\": {}", self.name, self.value, self.allowed)
    }
}

impl Row {
    /// Parses and checks a value for this row.
    pub fn parse(&self, text: &str) -> Result<Value, Problem> {
        let value = self.parse_kind(text.trim()).map_err(|allowed| self.problem(text, allowed, false))?;
        self.check.admit(&value).map_err(|allowed| self.problem(text, allowed, false))?;
        if let State::Refused(why) = self.state
            && !self.is_default(&value)
        {
            let instead = match self.default {
                Some(default) if !default.is_empty() => format!("; only {default} is possible"),
                Some(_) | None => String::new(),
            };
            return Err(self.problem(text, format!("refused: {why}{instead}"), true));
        }
        Ok(value)
    }

    /// The default, parsed. `None` where the setting has none.
    pub fn default_value(&self) -> Option<Value> {
        // Sound by a test over every row; a default is not refused, whatever the row's state.
        self.default.and_then(|text| self.parse_kind(text).ok())
    }

    fn is_default(&self, value: &Value) -> bool {
        match self.default_value() {
            Some(default) => *value == default,
            None => value.to_string().is_empty(),
        }
    }

    fn problem(&self, text: &str, allowed: String, refused: bool) -> Problem {
        let value = if self.sensitive() { "[hidden]".to_owned() } else { text.to_owned() };
        Problem { name: self.name.to_owned(), value, allowed, refused }
    }

    fn parse_kind(&self, text: &str) -> Result<Value, String> {
        let number = |lowest: i64, highest: i64| match text.parse::<i64>() {
            Ok(number) if (lowest..=highest).contains(&number) => Ok(Value::Number(number)),
            Ok(_) | Err(_) => Err(match self.check.allowed() {
                Some(allowed) => allowed,
                None => format!("must be a whole number from {lowest} to {highest}"),
            }),
        };
        match self.kind {
            Kind::Boolean if text.eq_ignore_ascii_case("true") => Ok(Value::Boolean(true)),
            Kind::Boolean if text.eq_ignore_ascii_case("false") => Ok(Value::Boolean(false)),
            Kind::Boolean => Err("must be true or false".to_owned()),
            Kind::Short => number(i64::from(i16::MIN), i64::from(i16::MAX)),
            Kind::Int => number(i64::from(i32::MIN), i64::from(i32::MAX)),
            Kind::Long => number(i64::MIN, i64::MAX),
            Kind::Double => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Value::Double(number)),
                Ok(_) | Err(_) => Err("must be a number".to_owned()),
            },
            Kind::String | Kind::Class | Kind::Password => Ok(Value::Text(text.to_owned())),
            Kind::List => {
                let list = split_list(text);
                if list.iter().any(String::is_empty) {
                    return Err("must not have an empty item between its commas".to_owned());
                }
                Ok(Value::List(list))
            }
        }
    }
}

/// The items of a list, without the white space around them. No text is no item.
pub fn split_list(text: &str) -> Vec<String> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    text.split(',').map(|item| item.trim().to_owned()).collect()
}

/// How a client metrics subscription may select clients.
const CLIENT_SELECTORS: &[&str] = &[
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

/// The security protocols that Kafka knows.
const PROTOCOLS: &[&str] = &["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"];

impl Check {
    /// What is allowed, as the end of a sentence about the value. `None`: everything.
    pub fn allowed(&self) -> Option<String> {
        Some(match self {
            Check::Any => return None,
            Check::AtLeast(lowest) => format!("must be a whole number, {lowest} or more"),
            Check::Between(lowest, highest) => format!("must be a whole number from {lowest} to {highest}"),
            Check::MinusOneOr(lowest, highest) => {
                format!("must be a whole number from {lowest} to {highest}, or -1")
            }
            Check::Share(lowest, highest) => format!("must be a number from {lowest} to {highest}"),
            Check::NotEmpty => "must not be empty".to_owned(),
            Check::OneOf(words) => format!("must be one of: {}", words.join(", ")),
            Check::AnyCase(words) => format!("must be one of: {}, in capitals or not", words.join(", ")),
            Check::EachOf(words) => format!("must be a list of any of: {}", words.join(", ")),
            Check::Replicas => "must be * or a list of partition:broker, such as 0:1,0:2".to_owned(),
            Check::AddressCounts => {
                "must be a list of address:count, such as 10.0.0.1:100,[::1]:5; host names are not looked up"
                    .to_owned()
            }
            Check::ProtocolMap => {
                format!("must be a list of NAME:PROTOCOL, with one of: {}", PROTOCOLS.join(", "))
            }
            Check::OffsetReset => {
                "must be earliest, latest or by_duration: with an ISO duration, such as by_duration:PT1H"
                    .to_owned()
            }
            Check::ClientMatch => {
                format!("must be a list of selector=pattern, with one of: {}", CLIENT_SELECTORS.join(", "))
            }
        })
    }

    fn admit(&self, value: &Value) -> Result<(), String> {
        let fits = match (self, value) {
            (Check::Any, _) => true,
            (Check::AtLeast(lowest), Value::Number(number)) => number >= lowest,
            (Check::Between(lowest, highest), Value::Number(number)) => (lowest..=highest).contains(&number),
            (Check::MinusOneOr(lowest, highest), Value::Number(number)) => {
                *number == -1 || (lowest..=highest).contains(&number)
            }
            (Check::Share(lowest, highest), Value::Double(number)) => (lowest..=highest).contains(&number),
            (Check::NotEmpty, Value::Text(text)) => !text.is_empty(),
            (Check::OneOf(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Check::AnyCase(words), Value::Text(text)) => {
                words.iter().any(|word| word.eq_ignore_ascii_case(text))
            }
            (Check::EachOf(words), Value::List(list)) => {
                list.iter().all(|item| words.contains(&item.as_str()))
            }
            (Check::Replicas, Value::List(list)) => {
                list.iter().all(|item| is_replica(item)) || list.as_slice() == ["*"]
            }
            (Check::AddressCounts, Value::Text(text)) => address_counts(text).is_some(),
            (Check::ProtocolMap, Value::Text(text)) => protocol_map(text).is_some(),
            (Check::OffsetReset, Value::Text(text)) => {
                text == "earliest"
                    || text == "latest"
                    || text.strip_prefix("by_duration:").is_some_and(is_duration)
            }
            (Check::ClientMatch, Value::List(list)) => list.iter().all(|item| {
                item.split_once('=').is_some_and(|(selector, pattern)| {
                    CLIENT_SELECTORS.contains(&selector) && !pattern.is_empty()
                })
            }),
            (_, _) => false,
        };
        if fits { Ok(()) } else { Err(self.allowed().unwrap_or_default()) }
    }
}

fn is_replica(item: &str) -> bool {
    item.split_once(':').is_some_and(|(partition, broker)| is_id(partition) && is_id(broker))
}

/// Whether the text is the number of a partition or a broker.
fn is_id(text: &str) -> bool {
    text.parse::<i32>().is_ok_and(|number| number >= 0)
}

/// Parses `address:count` pairs; an IPv6 address keeps its colons. An IPv4 address written as an IPv6 one is the same.
pub fn address_counts(text: &str) -> Option<Vec<(IpAddr, u32)>> {
    split_list(text)
        .iter()
        .map(|item| {
            let (address, count) = item.rsplit_once(':')?;
            let count = count.parse().ok().filter(|count| *count <= i32::MAX as u32)?;
            let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
            Some((address.to_canonical(), count))
        })
        .collect()
}

/// Parses `NAME:PROTOCOL` pairs, names in capitals.
pub fn protocol_map(text: &str) -> Option<Vec<(String, String)>> {
    split_list(text)
        .iter()
        .map(|item| {
            let (name, protocol) = item.split_once(':')?;
            let fits = !name.is_empty() && PROTOCOLS.contains(&protocol);
            fits.then(|| (name.to_ascii_uppercase(), protocol.to_owned()))
        })
        .collect()
}

/// A coarse look at an ISO duration: P, days, T, hours, minutes, seconds, and at least one of them.
fn is_duration(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('P') else { return false };
    let (days, time) = rest.split_once('T').map_or((rest, None), |(days, time)| (days, Some(time)));
    let parts = |text: &str, units: &str| {
        let mut units = units.chars();
        let mut number = String::new();
        for letter in text.chars() {
            if letter.is_ascii_digit() || (letter == '.' && !number.is_empty()) {
                number.push(letter);
            } else if number.is_empty() || !units.any(|unit| unit == letter) {
                return false;
            } else {
                number.clear();
            }
        }
        number.is_empty()
    };
    match time {
        None => !days.is_empty() && parts(days, "D"),
        Some(time) => parts(days, "D") && !time.is_empty() && parts(time, "HMS"),
    }
}
