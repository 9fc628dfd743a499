//! InitProducerId: hands out ids for idempotent producers.
//!
//! - Without a transactional id every request gets a new id at epoch 0, whatever id the producer had: it raises its
//!   own epoch (KIP-360) and comes here only for the first one or when its epochs are used up.
//! - 6 is unstable in Kafka and not served.
//!
//! Differences from Apache Kafka: transactions are not served yet. A transactional id is refused with
//! TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which librdkafka, the Java client and kafka-python hand to the application at
//! once. Most other codes, UNSUPPORTED_VERSION and INVALID_REQUEST included, librdkafka tries again for ever, and the
//! few that it does not would say something wrong about the producer.

use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::{ApiKey, InitProducerIdRequest, InitProducerIdResponse, ProducerId};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::InitProducerId,
    oldest: 0,
    newest: 5,
    listed_from: 0,
    class: Class::Records,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: InitProducerIdRequest = call.decode()?;
    if let Err(code) = check(&request) {
        if code == ErrorCode::TransactionalIdAuthorizationFailed {
            tracing::info!(
                peer = %call.client.peer,
                client = call.client_id(),
                "a transactional producer is refused: transactions are not served yet"
            );
        }
        return call.answer(&failure(code));
    }
    let node = Arc::clone(node);
    Answer::later(async move {
        match node.producer_ids.next(&node.agent).await {
            Ok(id) => call.reply(
                &InitProducerIdResponse::default().with_producer_id(ProducerId(id)).with_producer_epoch(0),
            ),
            Err(error) => {
                tracing::warn!(%error, "no producer id could be had");
                call.reply(&failure(error.code()))
            }
        }
    })
}

fn check(request: &InitProducerIdRequest) -> Result<(), ErrorCode> {
    // An id and an epoch come together or not at all.
    if (request.producer_id.0 == -1) != (request.producer_epoch == -1) {
        return Err(ErrorCode::InvalidRequest);
    }
    match &request.transactional_id {
        None => Ok(()),
        Some(id) if id.is_empty() => Err(ErrorCode::InvalidRequest),
        Some(_) => Err(ErrorCode::TransactionalIdAuthorizationFailed),
    }
}

fn failure(code: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(code as i16)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

#[cfg(test)]
mod tests {
    use felix_protocol::messages::{StrBytes, TransactionalId};

    use super::*;

    fn request() -> InitProducerIdRequest {
        InitProducerIdRequest::default().with_transactional_id(None)
    }

    #[test]
    fn an_id_and_an_epoch_come_together() {
        assert_eq!(check(&request()), Ok(()));
        let with = |id, epoch| request().with_producer_id(ProducerId(id)).with_producer_epoch(epoch);
        assert_eq!(check(&with(7, 3)), Ok(()));
        assert_eq!(check(&with(7, -1)), Err(ErrorCode::InvalidRequest));
        assert_eq!(check(&with(-1, 3)), Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn a_transactional_id_is_refused_for_good() {
        let with = |id: &str| {
            request().with_transactional_id(Some(TransactionalId(StrBytes::from_string(id.to_owned()))))
        };
        let code = check(&with("orders")).unwrap_err();
        assert_eq!(code, ErrorCode::TransactionalIdAuthorizationFailed);
        assert!(!code.retriable());
        assert_eq!(check(&with("")), Err(ErrorCode::InvalidRequest));
    }
}
