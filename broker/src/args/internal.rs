//! How other brokers are spoken to: where this one listens for them, and how they know each other.

use super::endpoint::{is_loopback, split_plain};
use super::etcd::{EtcdSettings, read};
use super::{ArgsError, Endpoint, Source, Values, wrong};

/// Where brokers listen for each other unless they are told otherwise.
const DEFAULT: (&str, u16) = ("127.0.0.1", 9192);

/// The inter-broker listener. Only brokers with a shared control store have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalSettings {
    /// Host to listen on.
    pub host: String,
    /// Port to listen on; 0 asks the system for a free one.
    pub port: u16,
    /// Nobody asked for that port: another will do.
    pub is_default: bool,
    /// What peers are told to dial, where it is something else.
    pub advertised: Option<(String, u16)>,
    /// Who is believed.
    pub tls: Option<InternalTls>,
}

/// How brokers prove who they are.
#[derive(Clone, PartialEq, Eq)]
pub struct InternalTls {
    /// This broker's certificate and those between it and the authority, PEM.
    pub cert: Vec<u8>,
    /// Its key, PEM.
    pub key: Vec<u8>,
    /// The authority, PEM.
    pub ca: Vec<u8>,
}

/// Keys are nobody's business.
impl std::fmt::Debug for InternalTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InternalTls").finish_non_exhaustive()
    }
}

const CERT: &str = "internal-tls-cert";
const KEY: &str = "internal-tls-key";
const CA: &str = "internal-tls-ca";

/// What was said of it; `None` where there are no other brokers.
pub(super) fn settings(
    values: &Values,
    etcd: Option<&EtcdSettings>,
    listeners: &[Endpoint],
) -> Result<Option<InternalSettings>, ArgsError> {
    let place = |text: &str| split_plain(text).map(|(host, port)| (host.to_owned(), port));
    let given = values.parse("internal-listener", place)?;
    let advertised = values.parse("internal-advertise", |text| match place(text)? {
        (_, 0) => Err("brokers cannot connect to port 0; advertise a real port".to_owned()),
        (host, _) if host == "0.0.0.0" || host == "::" => {
            Err(format!("brokers cannot connect to \"{host}\"; advertise a host they can reach"))
        }
        place => Ok(place),
    })?;
    let tls = tls(values)?;
    let plain = values.parse("internal-plaintext", |text| {
        text.parse::<bool>().map_err(|_| "must be true or false".to_owned())
    })?;
    if etcd.is_none() {
        return Ok(None);
    }
    let is_default = given.is_none();
    let (host, port) = given.unwrap_or_else(|| (DEFAULT.0.to_owned(), DEFAULT.1));
    let refuse = |allowed: String| {
        let (value, source) = match values.get("internal-listener") {
            Some((value, source)) => (value.to_owned(), source.clone()),
            None => (format!("{}:{}", DEFAULT.0, DEFAULT.1), Source::Default),
        };
        Err(wrong("internal-listener", &value, &source, allowed))
    };
    if is_loopback(&host) {
        if let Some(open) = listeners.iter().find(|listener| !is_loopback(&listener.host)) {
            return refuse(format!(
                "only brokers on this machine can connect to it, but clients can connect from elsewhere ({open}); \
                 give an address that all brokers reach"
            ));
        }
    } else if tls.is_none() && plain != Some(true) {
        return refuse(format!(
            "whoever reaches it would be taken for a broker; give --{CERT}, --{KEY} and --{CA}, or \
             --internal-plaintext true where nobody else can reach it"
        ));
    }
    Ok(Some(InternalSettings { host, port, is_default, advertised, tls }))
}

fn tls(values: &Values) -> Result<Option<InternalTls>, ArgsError> {
    let read = |name: &'static str| values.parse(name, read);
    match (read(CERT)?, read(KEY)?, read(CA)?) {
        (Some(cert), Some(key), Some(ca)) => Ok(Some(InternalTls { cert, key, ca })),
        _ => {
            // All or none of them.
            let given = [CERT, KEY, CA].into_iter().find_map(|name| Some((name, values.get(name)?)));
            let Some((name, (value, source))) = given else { return Ok(None) };
            let missing: Vec<String> = [CERT, KEY, CA]
                .into_iter()
                .filter(|name| values.get(name).is_none())
                .map(|name| format!("--{name}"))
                .collect();
            Err(wrong(name, value, source, format!("must be given together with {}", missing.join(" and "))))
        }
    }
}
