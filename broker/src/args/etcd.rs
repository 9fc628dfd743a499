//! How the control store is reached, where it is etcd.

use super::{ArgsError, Values, wrong};

/// Where etcd is, and what it wants to see.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `host:port` or URLs.
    pub endpoints: Vec<String>,
    /// What all keys of the cluster begin with.
    pub prefix: String,
    /// The authority that signs etcd's certificates, PEM.
    pub ca: Option<Vec<u8>>,
    /// Our certificate and its key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Name and password.
    pub user: Option<(String, String)>,
}

/// Keys and passwords are nobody's business.
impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (endpoints, prefix) = (&self.endpoints, &self.prefix);
        f.debug_struct("EtcdSettings")
            .field("endpoints", endpoints)
            .field("prefix", prefix)
            .finish_non_exhaustive()
    }
}

/// What was said of etcd; `None` where the control store is in the data directory.
pub(super) fn settings(values: &Values) -> Result<Option<EtcdSettings>, ArgsError> {
    let Some(endpoints) = values.parse("etcd", endpoints)? else { return Ok(None) };
    let prefix = values.parse("cluster-prefix", prefix)?.unwrap_or_else(|| "/felix".to_owned());
    let identity = pair(values, "FELIX_ETCD_CERT_FILE", "FELIX_ETCD_KEY_FILE", read)?;
    let user = pair(values, "FELIX_ETCD_USER", "FELIX_ETCD_PASSWORD", |text| Ok(text.to_owned()))?;
    Ok(Some(EtcdSettings {
        endpoints,
        prefix,
        ca: values.parse("FELIX_ETCD_CA_FILE", read)?,
        identity,
        user,
    }))
}

fn endpoints(text: &str) -> Result<Vec<String>, String> {
    let allowed = || "must be host:port, http://host:port or https://host:port, several separated by commas";
    let endpoints: Vec<String> = text.split(',').map(|one| one.trim().to_owned()).collect();
    let is_one = |one: &String| {
        let place = one.strip_prefix("http://").or_else(|| one.strip_prefix("https://")).unwrap_or(one);
        let split = place.trim_end_matches('/').rsplit_once(':');
        split.is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    if endpoints.iter().all(is_one) { Ok(endpoints) } else { Err(allowed().to_owned()) }
}

fn prefix(text: &str) -> Result<String, String> {
    let is_one = text.len() > 1 && text.starts_with('/') && !text.ends_with('/');
    let allowed = "must begin with a slash, not end with one, and have something between";
    if is_one { Ok(text.to_owned()) } else { Err(allowed.to_owned()) }
}

pub(super) fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("must be a file that can be read: {error}"))
}

/// Two settings that need each other.
fn pair<T>(
    values: &Values,
    first: &'static str,
    second: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<(T, T)>, ArgsError> {
    match (values.parse(first, &parse)?, values.parse(second, &parse)?) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (given, _) => {
            let (given, missing) = if given.is_some() { (first, second) } else { (second, first) };
            let Some((_, source)) = values.get(given) else { return Ok(None) };
            Err(wrong(given, "...", source, format!("must be given together with {missing}")))
        }
    }
}
