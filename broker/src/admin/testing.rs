//! Views of a cluster of one broker, for tests of what is answered from them.

use felix_cluster::decision::Change;
use felix_cluster::keys::Key;
use felix_cluster::quotas::Entity;
use felix_cluster::state::{
    self, Leader, Listener, Node, NodeState, Overrides, Partition, Revision, Topic, TopicName,
};
use felix_cluster::view::{ConfigScope, View};
use felix_protocol::ids::{BrokerId, PartitionId, SessionId, TopicId, Uuid};
use serde::Serialize;

const BROKER: BrokerId = BrokerId(1);

/// Topics of one partition each.
pub fn view(topics: &[&str]) -> View {
    let topics: Vec<(&str, i32)> = topics.iter().map(|name| (*name, 1)).collect();
    view_with(&topics)
}

/// Topics with so many partitions, all led by broker 1, which listens at `PLAINTEXT://localhost:9092`.
pub fn view_with(topics: &[(&str, i32)]) -> View {
    let mut view = View::default();
    let session = SessionId(1);
    node(&mut view, BROKER, NodeState::Live);
    for (name, partitions) in topics {
        let id = TopicId::random();
        let topic = Topic {
            name: (*name).to_owned(),
            partitions: *partitions,
            replication_factor: 1,
            overrides: Overrides::new(),
            assignments: std::collections::BTreeMap::new(),
        };
        put(
            &mut view,
            &Key::TopicName((*name).to_owned()),
            &TopicName { name: (*name).to_owned(), topic: id },
        );
        put(&mut view, &Key::Topic(id), &topic);
        for index in 0..*partitions {
            let mut partition = Partition::placed(vec![BROKER]);
            partition.leader = Some(Leader { broker: BROKER, session, log: None });
            put(&mut view, &Key::Partition(PartitionId { topic: id, index }), &partition);
        }
    }
    view
}

/// Registers a node in that state, with a session of its own number.
pub fn node(view: &mut View, id: BrokerId, state: NodeState) {
    let listener = Listener {
        name: "PLAINTEXT".to_owned(),
        protocol: "PLAINTEXT".to_owned(),
        host: "localhost".to_owned(),
        port: 9092,
    };
    let number = u32::try_from(id.0).unwrap();
    let node = Node {
        session: SessionId(number.into()),
        state,
        directory: Uuid::from_u128(number.into()),
        suspect: false,
        boot: String::new(),
        listeners: vec![listener],
        internal: None,
        rack: None,
        version: String::new(),
    };
    put(view, &Key::Node(id), &node);
}

/// Sets one config of that scope, in place of all that was set there.
pub fn set(view: &mut View, scope: &ConfigScope, name: &str, value: &str) {
    put(view, &scope.key(), &Overrides::from([(name.to_owned(), value.to_owned())]));
}

/// Sets configs of a topic, in place of all that were set on it.
pub fn configure(view: &mut View, topic: &str, configs: &[(&str, &str)]) {
    let topic = view.topic_named(topic).unwrap();
    let (key, mut value) = (Key::Topic(topic.id), topic.value());
    value.overrides = configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    put(view, &key, &value);
}

/// Limits an entity in one thing, in place of all that it was limited in.
pub fn limit(view: &mut View, entity: &Entity, name: &str, value: f64) {
    let quotas = state::Quotas { limits: [(name.to_owned(), value)].into() };
    put(view, &Key::Quotas(entity.clone()), &quotas);
}

/// Changes a partition's key.
pub fn change(view: &mut View, topic: &str, index: i32, change: impl FnOnce(&mut Partition)) {
    let id = PartitionId { topic: view.topic_named(topic).unwrap().id, index };
    let mut state = view.partition(&id).unwrap().state.clone();
    change(&mut state);
    put(view, &Key::Partition(id), &state);
}

fn put<T: Serialize>(view: &mut View, key: &Key, value: &T) {
    let revision = Revision(view.revision().0 + 1);
    let change = Change { key: key.to_string(), value: Some(state::encode(value)), revision };
    view.apply(&change).unwrap();
}
