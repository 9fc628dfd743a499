//! DescribeUserScramCredentials: there are none, because nobody can log in yet. Tools ask for them beside a user's quotas.
//!
//! Null or no users mean all. A user that is asked for by name is RESOURCE_NOT_FOUND, one asked for twice DUPLICATE_RESOURCE, as in
//! Kafka.

use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_user_scram_credentials_request::UserName;
use felix_protocol::messages::describe_user_scram_credentials_response::DescribeUserScramCredentialsResult;
use felix_protocol::messages::{
    ApiKey, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, StrBytes,
};

use super::{Api, Call, Class, Handled, named_twice, text};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeUserScramCredentials,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(_node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeUserScramCredentialsRequest = call.decode()?;
    let results = missing(&request.users.unwrap_or_default());
    let response = DescribeUserScramCredentialsResponse::default().with_error_message(None);
    call.answer(&response.with_results(results))
}

/// Every user that was asked for, once.
fn missing(users: &[UserName]) -> Vec<DescribeUserScramCredentialsResult> {
    let twice = named_twice(users.iter().map(|user| user.name.clone()));
    let mut told: Vec<&StrBytes> = Vec::new();
    let mut results = Vec::new();
    for UserName { name, .. } in users {
        let (code, why) = match twice.contains(name) {
            true if told.contains(&name) => continue,
            true => (
                ErrorCode::DuplicateResource,
                "Cannot describe SCRAM credentials for the same user twice in a single request",
            ),
            false => {
                (ErrorCode::ResourceNotFound, "Attempt to describe a user credential that does not exist")
            }
        };
        if twice.contains(name) {
            told.push(name);
        }
        let result = DescribeUserScramCredentialsResult::default()
            .with_user(name.clone())
            .with_error_code(code as i16)
            .with_error_message(Some(text(format!("{why}: {name}"))));
        results.push(result);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_any() {
        let user = |name: &'static str| UserName::default().with_name(StrBytes::from_static_str(name));
        let codes = |users: &[&'static str]| {
            let users: Vec<_> = users.iter().map(|name| user(name)).collect();
            missing(&users).iter().map(|result| result.error_code).collect::<Vec<_>>()
        };
        assert!(codes(&[]).is_empty());
        assert_eq!(codes(&["a", "b", "a"]), [92, 91]);
    }
}
