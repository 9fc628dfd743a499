//! DeleteTopics: by name, and from version 6 on by id too.
//!
//! - The answer names every topic of the request once; 5 and later say why not.
//! - 5: a client over `controller_mutation_rate` is refused (THROTTLING_QUOTA_EXCEEDED); older ones are let through and rest.
//! - With `delete.topic.enable=false` nothing is deleted: TOPIC_DELETION_DISABLED, INVALID_REQUEST before version 3.
//! - A topic that is named twice, or by name and by id, is refused and stays.
//! - Names are looked up in what the control store holds now, so a topic that another broker has just created is deleted.
//! - When the answer comes, the topic is gone from Metadata; its files follow.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use felix_cluster::topics::TopicRef;
use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::TopicId;
use felix_protocol::messages::delete_topics_request::DeleteTopicState;
use felix_protocol::messages::delete_topics_response::DeletableTopicResult;
use felix_protocol::messages::{ApiKey, DeleteTopicsRequest, DeleteTopicsResponse, TopicName};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::{Refused, count_changes};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DeleteTopics,
    oldest: 1,
    newest: 6,
    listed_from: 1,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DeleteTopicsRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { delete(&node, &call, request).await })
}

async fn delete(node: &Node, call: &Call, request: DeleteTopicsRequest) -> Result<Reply, Reply> {
    let by_name =
        request.topic_names.into_iter().map(|name| DeleteTopicState::default().with_name(Some(name)));
    let asked: Vec<DeleteTopicState> = by_name.chain(request.topics).collect();
    let checked = if !node.configs.broker(&node.view()).topics.may_delete {
        let code = match call.version() {
            ..3 => ErrorCode::InvalidRequest,
            3.. => ErrorCode::TopicDeletionDisabled,
        };
        all_refused(asked, &Refused::new(code, "Topic deletion is disabled."))
    } else {
        match node.agent.catch_up().await {
            Ok(view) => {
                let mut checked = check(&view, asked);
                for (_, _, found) in &mut checked {
                    if let Ok(id) = found {
                        let partitions = view.topic(id).map_or(0, |topic| topic.partition_count);
                        let partitions = usize::try_from(partitions).unwrap_or(0);
                        let strict = call.version() >= 5;
                        if let Err(refused) = count_changes(node, call.client_id(), partitions, strict) {
                            *found = Err(refused);
                        }
                    }
                }
                checked
            }
            Err(error) => all_refused(asked, &Refused::new(error.code(), error.to_string())),
        }
    };
    let wanted =
        checked.iter().filter_map(|(_, _, id)| id.as_ref().ok()).map(|id| TopicRef::Id(*id)).collect();
    let mut deleted = node.agent.delete_topics(wanted).await.into_iter();
    let responses = checked.into_iter().map(|(name, id, checked)| {
        let outcome = checked.and_then(|_| match deleted.next() {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(Refused::from_admin(&error)),
            None => Err(Refused::from(ErrorCode::UnknownServerError)),
        });
        let response = DeletableTopicResult::default().with_name(name).with_topic_id(id.0);
        match outcome {
            Ok(()) => response,
            Err(refused) => {
                response.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
            }
        }
    });
    call.reply(&DeleteTopicsResponse::default().with_responses(responses.collect()))
}

/// A topic of the answer: what it is called, its id, and what is to be deleted or why not.
type Checked = (Option<TopicName>, TopicId, Result<TopicId, Refused>);

fn all_refused(asked: Vec<DeleteTopicState>, why: &Refused) -> Vec<Checked> {
    asked.into_iter().map(|topic| (topic.name, TopicId(topic.topic_id), Err(why.clone()))).collect()
}

fn check(view: &View, asked: Vec<DeleteTopicState>) -> Vec<Checked> {
    // How often each topic is meant, by whatever it is called.
    let mut meant: HashMap<TopicId, usize> = HashMap::new();
    let mut lines: Vec<Checked> = Vec::with_capacity(asked.len());
    let mut missing = HashSet::new();
    for topic in asked {
        let id = TopicId(topic.topic_id);
        let line = match (topic.name, id == TopicId::NONE) {
            (None, true) => {
                let why = "Neither topic name nor id were specified.";
                (None, id, Err(Refused::new(ErrorCode::InvalidRequest, why)))
            }
            (Some(name), false) => {
                let why = "You may not specify both topic name and topic id.";
                (Some(name), id, Err(Refused::new(ErrorCode::InvalidRequest, why)))
            }
            (Some(name), true) => match view.topic_named(&name) {
                Some(found) => (Some(name), found.id, Ok(found.id)),
                None => (Some(name), id, Err(ErrorCode::UnknownTopicOrPartition.into())),
            },
            (None, false) => match view.topic(&id) {
                Some(found) => {
                    let name = TopicName(text(found.name.to_string()));
                    (Some(name), id, Ok(id))
                }
                None => (None, id, Err(ErrorCode::UnknownTopicId.into())),
            },
        };
        match &line.2 {
            Ok(id) => *meant.entry(*id).or_default() += 1,
            // A name that is not there may be repeated like any other, and is answered once.
            Err(_) if !missing.insert((line.0.clone(), line.1)) => continue,
            Err(_) => {}
        }
        lines.push(line);
    }
    let mut told = HashSet::new();
    lines.retain_mut(|(name, id, checked)| {
        let twice = checked.as_ref().is_ok_and(|id| meant.get(id).is_some_and(|count| *count > 1));
        if !twice {
            return true;
        }
        *checked = Err(Refused::new(ErrorCode::InvalidRequest, "The topic is named more than once."));
        told.insert((*id, name.clone()))
    });
    lines
}

#[cfg(test)]
mod tests {
    use felix_protocol::messages::StrBytes;

    use super::*;
    use crate::admin::testing;

    fn named(name: &str) -> DeleteTopicState {
        DeleteTopicState::default().with_name(Some(TopicName(StrBytes::from_string(name.to_owned()))))
    }

    fn codes(checked: &[Checked]) -> Vec<ErrorCode> {
        checked
            .iter()
            .map(|(_, _, outcome)| outcome.as_ref().map_or_else(|no| no.code, |_| ErrorCode::None))
            .collect()
    }

    #[test]
    fn topics_are_found_by_name_and_by_id() {
        let view = testing::view(&["a", "b"]);
        let id = view.topic_named("b").unwrap().id;
        let by_id = DeleteTopicState::default().with_name(None).with_topic_id(id.0);
        let unknown = DeleteTopicState::default().with_name(None).with_topic_id(TopicId::random().0);
        let checked = check(&view, vec![named("a"), by_id, unknown, named("c")]);
        assert_eq!(
            codes(&checked),
            [ErrorCode::None, ErrorCode::None, ErrorCode::UnknownTopicId, ErrorCode::UnknownTopicOrPartition]
        );
        assert_eq!(checked[1].0.as_ref().unwrap().to_string(), "b", "the answer names what was meant by id");
    }

    #[test]
    fn what_is_named_twice_stays() {
        let view = testing::view(&["a", "b"]);
        let id = view.topic_named("a").unwrap().id;
        let by_id = || DeleteTopicState::default().with_name(None).with_topic_id(id.0);
        assert_eq!(
            codes(&check(&view, vec![named("a"), named("a"), named("b")])),
            [ErrorCode::InvalidRequest, ErrorCode::None]
        );
        assert_eq!(codes(&check(&view, vec![named("a"), by_id()])), [ErrorCode::InvalidRequest]);
        let both = named("a").with_topic_id(id.0);
        let neither = DeleteTopicState::default().with_name(None);
        assert_eq!(codes(&check(&view, vec![both, neither])), [ErrorCode::InvalidRequest; 2]);
    }
}
