//! DescribeAcls: there are none, because nobody is kept from anything yet. The answer is the one of an Apache Kafka
//! node without an authorizer, SECURITY_DISABLED, by which tools know to leave ACLs alone.

use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::{ApiKey, DescribeAclsRequest, DescribeAclsResponse, StrBytes};

use super::{Api, Call, Class, Handled};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeAcls,
    oldest: 1,
    newest: 3,
    listed_from: 1,
    class: Class::Admin,
    start: handle,
};

fn handle(_node: &Arc<Node>, call: Call) -> Handled {
    let _: DescribeAclsRequest = call.decode()?;
    let text = StrBytes::from_static_str("No Authorizer is configured.");
    let response = DescribeAclsResponse::default()
        .with_error_code(ErrorCode::SecurityDisabled as i16)
        .with_error_message(Some(text));
    call.answer(&response)
}
