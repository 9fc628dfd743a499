//! Writes `docs/configuration.md` from the tables, so that it cannot say anything else than what is checked.

use std::fmt::Write as _;

use super::flags::{FLAGS, Flag};
use super::row::{Area, Check, Row, State};
use super::table::{Resource, broker_names_of_group, broker_names_of_topic};

const HEAD: &str = "\
# Configuration

Written from the tables in `control/cluster/src/config`; do not edit. After a change there, run
`FELIX_BLESS=1 cargo test -p felix-cluster the_configuration_page`.

Names are Kafka's wherever Kafka has one; ours start with `felix.`. Every config of Apache Kafka 4.4 is known, and says
what it does here:

| state | meaning |
|---|---|
| honoured | does what it says |
| partly | does a part of it, which is named |
| no effect | accepted, checked and shown, so that existing files and tools go on working; does nothing |
| refused | any value but the default is refused, with the reason |

Settings by which somebody believes himself protected (passwords, keys, who may log in, policies) are refused as long as
they are not honoured.

**Precedence.** For the node: flag, environment, file, default. For broker configs: changed for this broker, changed for
the cluster (both by `kafka-configs`, kept in the control store), given at the start (`--set` wins over the file), default.
A topic's or group's own config wins over the broker's. Of the configs that mean the same, milliseconds win over minutes,
and minutes over hours.

**Dynamic.** `cluster-wide` configs can be changed while brokers run, for one broker or for all; `per-broker` ones for one
broker; the others need a restart. Topic and group configs can always be changed.
";

/// The order of the page.
const AREAS: &[(Area, &str, &str)] = &[
    (
        Area::Topic,
        "Topic configs",
        "With `kafka-topics --create --config`, and `kafka-configs --alter --topic`. The broker config gives the value \
         where the topic has none.",
    ),
    (Area::Felix, "Our own broker configs", ""),
    (Area::Logs, "Logs", ""),
    (Area::Topics, "Creating and deleting topics", ""),
    (Area::Connections, "Connections and requests", ""),
    (Area::Groups, "Groups and their offsets", ""),
    (Area::Transactions, "Producers and transactions", ""),
    (Area::Cluster, "The node and its cluster", ""),
    (Area::Replication, "Replication", ""),
    (Area::Access, "Access", ""),
    (Area::Tls, "TLS", ""),
    (Area::Sasl, "Logins", ""),
    (Area::Observe, "Metrics and quotas", ""),
    (Area::ConsumerGroups, "Groups of the consumer protocol", ""),
    (Area::StreamsGroups, "Streams groups", ""),
    (Area::ShareGroups, "Share groups", ""),
    (Area::Remote, "Remote storage", ""),
    (
        Area::Group,
        "Group configs",
        "With `kafka-configs --alter --group`. The broker config gives the value where the group has none.",
    ),
    (Area::ClientMetrics, "Client metrics", "With `kafka-client-metrics`."),
];

/// The whole page.
pub fn render() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## The node\n\nA key of the file is the flag's name. `felix --help` says the same.\n\n");
    page.push_str("| flag | environment | default | same as | what it does |\n|---|---|---|---|---|\n");
    for flag in FLAGS {
        flag_row(&mut page, flag);
    }
    let all = [Resource::Topic, Resource::Broker, Resource::Group, Resource::ClientMetrics];
    for (area, title, note) in AREAS {
        let _ = write!(page, "\n## {title}\n\n");
        if !note.is_empty() {
            let _ = write!(page, "{note}\n\n");
        }
        let third = if matches!(area, Area::Topic | Area::Group) {
            "broker config"
        } else if *area == Area::ClientMetrics {
            "–"
        } else {
            "dynamic"
        };
        let _ = writeln!(
            page,
            "| name | kind, default, allowed | {third} | what it does here |\n|---|---|---|---|"
        );
        for resource in all {
            for row in resource.rows().iter().filter(|row| row.area == *area) {
                config_row(&mut page, resource, row);
            }
        }
    }
    page
}

fn flag_row(page: &mut String, flag: &Flag) {
    let code = |text: Option<&str>| text.map(|text| format!("`{text}`")).unwrap_or_default();
    let name = flag.flag.map(|name| format!("`--{name} {}`", flag.value_name)).unwrap_or_default();
    let _ = writeln!(
        page,
        "| {name} | {} | {} | {} | {}. {} |",
        code(flag.environment),
        code(flag.default),
        code(flag.config),
        escaped(flag.help),
        state(flag.state)
    );
}

fn config_row(page: &mut String, resource: Resource, row: &Row) {
    let third = match resource {
        Resource::Topic => names(broker_names_of_topic(row.name)),
        Resource::Group => names(broker_names_of_group(row.name)),
        Resource::Broker => row.dynamic.name().to_owned(),
        Resource::ClientMetrics => "–".to_owned(),
    };
    let internal = if row.internal { " For tests and experiments; not shown by tools." } else { "" };
    let _ = writeln!(
        page,
        "| `{}` | {}{}{} | {third} | {}{internal} {} |",
        row.name,
        row.kind.name(),
        default(row),
        allowed(row),
        escaped(row.doc),
        state(row.state)
    );
}

fn names(brokers: &[super::table::BrokerName]) -> String {
    brokers.iter().map(|broker| format!("`{}`", broker.name)).collect::<Vec<_>>().join(", ")
}

fn default(row: &Row) -> String {
    match row.default {
        None => ", unset".to_owned(),
        Some("") => ", empty".to_owned(),
        Some(default) => format!(", `{default}`"),
    }
}

fn allowed(row: &Row) -> String {
    // What goes without saying for a size or a time.
    if row.check == Check::AtLeast(0) {
        return String::new();
    }
    row.check.allowed().map(|text| format!("; {}", escaped(&text))).unwrap_or_default()
}

fn state(state: State) -> String {
    match state {
        State::Honoured => "**Honoured.**".to_owned(),
        State::Partly(what) => format!("**Partly:** {}.", escaped(what)),
        State::NoEffect(why) => format!("**No effect:** {}.", escaped(why)),
        State::Refused(why) => format!("**Refused:** {}.", escaped(why)),
    }
}

/// Text inside a table's cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FELIX_BLESS=1` writes the page instead of comparing it.
    #[test]
    fn the_configuration_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = render();
        if std::env::var_os("FELIX_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == page, "docs/configuration.md is old: run this test with FELIX_BLESS=1");
    }

    #[test]
    fn every_area_has_its_place() {
        let all = [Resource::Topic, Resource::Broker, Resource::Group, Resource::ClientMetrics];
        for row in all.iter().flat_map(|resource| resource.rows()) {
            assert!(AREAS.iter().any(|(area, _, _)| *area == row.area), "{}", row.name);
        }
    }
}
