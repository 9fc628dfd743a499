//! What must hold for any names and values of settings. Called by `../tests/fuzz.rs` over a corpus and by the
//! cargo-fuzz target.

use felix_cluster::config::edit::{self, Edit, Op, Scope};
use felix_cluster::config::layers::{Layers, Overrides, StaticConfig};
use felix_cluster::config::resolve;
use felix_cluster::config::table::Resource;

/// Lines of text, each a setting: `+name=value` appends, `-name=value` subtracts, `!name` deletes, and anything
/// else sets. They are given to every kind of resource, and as the settings of a start.
pub fn configs(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let edits: Vec<Edit> = text.lines().take(12).map(edit).collect();
    started(&edits);
    let mut layers = Layers::DEFAULTS;
    let broker =
        changed(&edits, |current, edits| edit::broker(Scope::Broker, current, edits, &Layers::DEFAULTS));
    let cluster =
        changed(&edits, |current, edits| edit::broker(Scope::Cluster, current, edits, &Layers::DEFAULTS));
    (layers.broker, layers.cluster) = (&broker, &cluster);
    let _ = resolve::broker(&layers);
    assert!(!resolve::describe_broker(&layers).is_empty());
    assert!(resolve::describe_cluster(&cluster).len() <= cluster.len());
    let topic = changed(&edits, |current, edits| edit::topic(current, edits, &layers));
    let resolved = resolve::topic(&topic, &layers);
    assert_eq!(resolved.problems, [], "what was accepted can be obeyed");
    let public = Resource::Topic.rows().iter().filter(|row| !row.internal).count();
    assert_eq!(resolve::describe_topic(&topic, &layers).len(), public);
    let group = changed(&edits, |current, edits| edit::group(current, edits, &layers));
    assert_eq!(resolve::group(&group, &layers).problems, [], "what was accepted can be obeyed");
    let _ = resolve::describe_group(&group, &layers);
    let metrics = changed(&edits, edit::client_metrics);
    let _ = resolve::describe_client_metrics(&metrics);
    // As an older version, or somebody else, may have stored them: nothing was checked.
    let unchecked: Overrides =
        edits.iter().filter_map(|edit| Some((edit.name.clone(), edit.value.clone()?))).collect();
    let layers = Layers { broker: &unchecked, cluster: &unchecked, fixed: &unchecked };
    let _ =
        (resolve::broker(&layers), resolve::topic(&unchecked, &layers), resolve::group(&unchecked, &layers));
    let _ = (resolve::describe_broker(&layers), resolve::describe_topic_needing(2, &unchecked, &layers));
}

fn edit(line: &str) -> Edit {
    let (op, rest) = match line.split_at_checked(1) {
        Some(("+", rest)) => (Op::Append, rest),
        Some(("-", rest)) => (Op::Subtract, rest),
        Some(("!", rest)) => (Op::Delete, rest),
        _ => (Op::Set, line),
    };
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value.to_string())),
        None => (rest, None),
    };
    Edit { name: name.to_string(), op, value }
}

/// Makes all edits at once and, where that is refused, one by one. What was accepted is accepted again, and
/// changes nothing then.
fn changed<E: std::fmt::Display>(
    edits: &[Edit],
    change: impl Fn(&Overrides, &[Edit]) -> Result<Overrides, E>,
) -> Overrides {
    let mut current = match change(&Overrides::new(), edits) {
        Ok(all) => all,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Overrides::new()
        }
    };
    for edit in edits {
        let Ok(next) = change(&current, std::slice::from_ref(edit)) else { continue };
        if matches!(edit.op, Op::Set | Op::Delete) {
            let again = change(&next, std::slice::from_ref(edit));
            assert!(again.is_ok_and(|again| again == next), "{edit:?} twice");
        }
        current = next;
    }
    current
}

fn started(edits: &[Edit]) {
    let mut config = StaticConfig::new();
    for edit in edits {
        let value = edit.value.as_deref().unwrap_or_default();
        match config.set(&edit.name, value, "line") {
            Ok(()) => assert_eq!(config.values().get(&edit.name).map(String::as_str), Some(value.trim())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(config.without_full_effect().count() <= config.values().len());
    if config.check().is_ok() {
        let layers = Layers { fixed: config.values(), ..Layers::DEFAULTS };
        assert_eq!(resolve::broker(&layers).problems, [], "what a node starts with can be obeyed");
    }
}
