//! DescribeConfigs: every setting of a topic, a broker, a group or a subscription to client metrics.
//!
//! - No keys, or null, means all of them: clients that change settings by reading and writing them all back must
//!   find every one.
//! - 1 and later: where a value was said, and all the others that were said (synonyms); 3: its type, and its
//!   documentation if asked for.
//! - The broker named "" is the cluster: only what was changed for it is listed. Another broker's settings are asked
//!   of that broker.
//! - Values that must not be shown are null.
//!
//! Differences from Apache Kafka: there are no loggers to describe (BROKER_LOGGER is refused), and documentation is
//! ours: it says what a setting does here.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use felix_cluster::config::{Entry, State};
use felix_cluster::view::View;
use felix_protocol::messages::describe_configs_request::DescribeConfigsResource;
use felix_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use felix_protocol::messages::{
    ApiKey, DescribeConfigsRequest, DescribeConfigsResponse, Encodable, StrBytes,
};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::configs::{Resource, describe};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeConfigs,
    oldest: 1,
    newest: 4,
    listed_from: 1,
    class: Class::Admin,
    start: handle,
};

/// Resources that are described at once; more of them take a while, and are described where nobody waits behind.
const FEW: usize = 8;
/// The longest answer. Any name of a group has settings, so a request could ask for more than memory holds.
const LONGEST: usize = 128 * 1024 * 1024;
/// A long answer is made in pieces of this size, each of which asks for memory first.
const PIECE: usize = 1024 * 1024;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeConfigsRequest = call.decode()?;
    if request.resources.len() <= FEW {
        return all(node, &call, &request).map(Answer::Now);
    }
    let readers = node.readers.clone();
    let node = Arc::clone(node);
    Answer::later(async move {
        let described = readers.run("describe-configs", move || all(&node, &call, &request));
        described.await.unwrap_or_else(|| Err(Reply::Close("a description was given up".to_owned())))
    })
}

fn all(node: &Node, call: &Call, request: &DescribeConfigsRequest) -> Result<Reply, Reply> {
    let wanted = Wanted {
        synonyms: request.include_synonyms,
        documentation: request.include_documentation && call.version() >= 3,
    };
    let view = node.view();
    let results = request.resources.iter().map(|resource| wanted.resource(node, &view, resource));
    let mut held = call.account.count(0);
    let pieces =
        encode(call.version(), results, |bytes| held.bytes() + bytes <= LONGEST && held.grow(bytes))?;
    call.reply_pieces(pieces, held)
}

/// The answer, encoded resource by resource: as messages, ten thousand topics would take hundreds of megabytes.
/// `room` is asked before more memory is taken.
fn encode(
    version: i16,
    results: impl ExactSizeIterator<Item = DescribeConfigsResult>,
    mut room: impl FnMut(usize) -> bool,
) -> Result<Vec<Bytes>, Reply> {
    let fail = |error: anyhow::Error| {
        tracing::error!(%error, "an answer could not be encoded");
        Reply::Close(error.to_string())
    };
    // An answer without results, up to where their number stands.
    let mut body = BytesMut::new();
    DescribeConfigsResponse::default().encode(&mut body, version).map_err(fail)?;
    body.truncate(THROTTLE_BYTES);
    put_count(&mut body, version, results.len());
    let mut pieces = Vec::new();
    for result in results {
        result.encode(&mut body, version).map_err(fail)?;
        if body.len() >= PIECE {
            if !room(body.len()) {
                return Err(Reply::Close("the settings asked for are too many for one answer".to_owned()));
            }
            // Room for what a piece may have beyond its size, so that it does not double for it.
            let next = BytesMut::with_capacity(PIECE + PIECE / 8);
            pieces.push(std::mem::replace(&mut body, next).freeze());
        }
    }
    if version >= FLEXIBLE {
        body.put_u8(0);
    }
    pieces.push(body.freeze());
    Ok(pieces)
}

/// The first version with compact arrays and tagged fields.
const FLEXIBLE: i16 = 4;
/// The only field before the results.
const THROTTLE_BYTES: usize = 4;

/// The number of an array's items as the wire has it.
fn put_count(body: &mut BytesMut, version: i16, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if version < FLEXIBLE {
        body.put_u32(count);
        return;
    }
    let mut rest = count.saturating_add(1);
    while rest >= 0x80 {
        body.put_u8(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
        rest >>= 7;
    }
    body.put_u8(u8::try_from(rest).unwrap_or(0));
}

/// What is to be told of each setting.
struct Wanted {
    synonyms: bool,
    documentation: bool,
}

impl Wanted {
    fn resource(
        &self,
        node: &Node,
        view: &View,
        resource: &DescribeConfigsResource,
    ) -> DescribeConfigsResult {
        let described = Resource::parse(resource.resource_type, &resource.resource_name)
            .and_then(|parsed| describe(node, view, &parsed));
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match described {
            // The message is the empty text, as Kafka's is.
            Ok(entries) => result.with_configs(self.entries(resource, entries)),
            Err(refused) => {
                result.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
            }
        }
    }

    fn entries(
        &self,
        resource: &DescribeConfigsResource,
        entries: Vec<Entry>,
    ) -> Vec<DescribeConfigsResourceResult> {
        let keys: Option<HashSet<&str>> = resource
            .configuration_keys
            .as_ref()
            .filter(|keys| !keys.is_empty())
            .map(|keys| keys.iter().map(|key| &**key).collect());
        entries
            .into_iter()
            .filter(|entry| keys.as_ref().is_none_or(|keys| keys.contains(entry.row.name)))
            .map(|entry| self.entry(entry))
            .collect()
    }

    fn entry(&self, entry: Entry) -> DescribeConfigsResourceResult {
        let row = entry.row;
        let synonyms = entry.synonyms.into_iter().filter(|_| self.synonyms).map(|synonym| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_static_str(synonym.name))
                .with_value(synonym.value.map(text))
                .with_source(synonym.source.code())
        });
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(row.name))
            .with_value(entry.value.map(text))
            .with_read_only(entry.read_only)
            .with_config_source(entry.source.code())
            .with_is_sensitive(row.sensitive())
            .with_synonyms(synonyms.collect())
            .with_config_type(row.kind.code())
            .with_documentation(self.documentation.then(|| text(documentation(row.doc, row.state))))
    }
}

/// The text for the operator, with how far it holds.
fn documentation(doc: &str, state: State) -> String {
    match state {
        State::Honoured => doc.to_owned(),
        State::Partly(why) => format!("{doc} Honoured in part: {why}."),
        State::NoEffect(why) => format!("{doc} Accepted without effect: {why}."),
        State::Refused(why) => format!("{doc} Only the default is accepted: {why}."),
    }
}

#[cfg(test)]
mod tests {
    use felix_cluster::config::{Layers, Overrides, resolve};

    use super::*;

    fn described(keys: Option<&[&'static str]>, wanted: &Wanted) -> Vec<DescribeConfigsResourceResult> {
        let overrides = Overrides::from([("retention.ms".to_owned(), "1000".to_owned())]);
        let entries = resolve::describe_topic(&overrides, &Layers::DEFAULTS);
        let keys = keys.map(|keys| keys.iter().map(|key| StrBytes::from_static_str(key)).collect());
        let resource = DescribeConfigsResource::default().with_configuration_keys(keys);
        wanted.entries(&resource, entries)
    }

    #[test]
    fn no_keys_mean_all() {
        let plain = Wanted { synonyms: false, documentation: false };
        let all = described(None, &plain);
        assert!(all.len() > 30);
        assert_eq!(described(Some(&[]), &plain).len(), all.len());
        assert!(all.iter().all(|one| one.config_type > 0 && one.documentation.is_none()));
        assert!(all.iter().all(|one| one.synonyms.is_empty()));
    }

    #[test]
    fn one_key_with_all_that_is_known() {
        let wanted = Wanted { synonyms: true, documentation: true };
        let found = described(Some(&["retention.ms", "no.such.key"]), &wanted);
        let [retention] = &found[..] else { panic!("{found:?}") };
        assert_eq!(retention.value.as_deref(), Some("1000"));
        assert_eq!((retention.config_source, retention.config_type), (1, 5));
        let [own] = &retention.synonyms[..] else { panic!("{retention:?}") };
        assert_eq!((&*own.name, own.source), ("retention.ms", 1));
        assert!(retention.documentation.as_ref().is_some_and(|doc| !doc.is_empty()));
    }

    #[test]
    fn encoded_one_by_one_the_answer_is_the_same() {
        let wanted = Wanted { synonyms: true, documentation: true };
        for version in 1..=4 {
            for count in [0, 1, 2, 126, 127, 300] {
                let one = || {
                    DescribeConfigsResult::default().with_configs(described(Some(&["retention.ms"]), &wanted))
                };
                let results: Vec<_> = (0..count).map(|_| one()).collect();
                let mut whole = BytesMut::new();
                let response = DescribeConfigsResponse::default().with_results(results.clone());
                response.encode(&mut whole, version).unwrap();
                let pieces = encode(version, results.into_iter(), |_| true).unwrap();
                assert_eq!(pieces.concat(), whole, "version {version}, {count}");
            }
        }
    }

    #[test]
    fn a_long_answer_asks_for_memory_piece_by_piece() {
        let wanted = Wanted { synonyms: true, documentation: true };
        let results = || {
            let one = DescribeConfigsResult::default().with_configs(described(None, &wanted));
            vec![one; 1_000].into_iter()
        };
        let mut taken = 0;
        let pieces = encode(4, results(), |bytes| {
            taken += bytes;
            true
        });
        let pieces = pieces.unwrap();
        assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.len() < 2 * PIECE), "{}", pieces.len());
        assert_eq!(pieces[..pieces.len() - 1].iter().map(Bytes::len).sum::<usize>(), taken);
        let mut left = 2;
        let refused = encode(4, results(), |_| {
            left -= 1;
            left > 0
        });
        assert!(matches!(refused, Err(Reply::Close(_))) && left == 0);
    }
}
