//! The way to etcd: endpoints tried in turn, TLS, name and password, and what each failure means.
//!
//! One endpoint at a time is in use, until it fails, with a client of the crate `etcd-client` that knows no other: so a
//! failure can be told with its place, and an endpoint that is down costs one request, not every third. Whether a
//! failed request may have had an effect is decided here and nowhere else ([`Failure`]).

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Channel, Client, ConnectOptions, Error, GetOptions, GetResponse, KvClient, PutResponse, Txn, TxnResponse,
    WatchOptions, WatchStream,
};
use felix_protocol::ids::Uuid;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Status};

use super::{EtcdConfig, EtcdConfigError};

/// The largest answer that is taken. A page that would be larger is asked for in smaller ones.
pub(super) const ANSWER_BYTES: usize = 4 << 20;
/// The same of one piece of a watch. A piece holds at least one value, whatever an operator allows those to weigh.
const PIECE_BYTES: usize = 32 << 20;
/// etcd closes connections whose clients ask for a sign of life more often than every 5 s.
const SIGN_OF_LIFE: Duration = Duration::from_secs(6);
const SIGN_OF_LIFE_WAIT: Duration = Duration::from_secs(3);

/// Why a request failed, by what may have come of it.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing happened; another endpoint may do better.
    Elsewhere(String),
    /// Nothing happened, and no other endpoint would do it either.
    Refused(String),
    /// Nothing happened: the token is too old.
    Token(String),
    /// Nothing happened: the revision that was asked for is not kept.
    Compacted,
    /// The answer would be larger than [`ANSWER_BYTES`]. It was carried out.
    TooLarge(String),
    /// Nobody knows whether it happened.
    Open(String),
}

impl Failure {
    /// With what went wrong at other endpoints first.
    fn after(self, before: &[String]) -> Failure {
        self.told(|what| {
            let others = before.iter().filter(|other| **other != what);
            others.fold(what.clone(), |told, other| format!("{other}; {told}"))
        })
    }

    /// The same in other words.
    fn told(self, tell: impl FnOnce(String) -> String) -> Failure {
        match self {
            Failure::Elsewhere(what) => Failure::Elsewhere(tell(what)),
            Failure::Refused(what) => Failure::Refused(tell(what)),
            Failure::Token(what) => Failure::Token(tell(what)),
            Failure::TooLarge(what) => Failure::TooLarge(tell(what)),
            Failure::Open(what) => Failure::Open(tell(what)),
            Failure::Compacted => Failure::Compacted,
        }
    }

    pub(super) fn what(self) -> String {
        match self {
            Failure::Elsewhere(what)
            | Failure::Refused(what)
            | Failure::Token(what)
            | Failure::TooLarge(what)
            | Failure::Open(what) => what,
            Failure::Compacted => "the revision is compacted".to_owned(),
        }
    }
}

/// See the module. A clone makes a connection of its own.
pub(super) struct Way {
    config: Arc<EtcdConfig>,
    endpoints: Arc<[Endpoint]>,
    timeout: Duration,
    at: usize,
    /// An attempt is under way; if it still is when the next one begins, its caller has given it up.
    pending: bool,
    client: Option<Client>,
    /// The client's token was refused.
    stale: bool,
}

impl Clone for Way {
    fn clone(&self) -> Self {
        Way {
            config: Arc::clone(&self.config),
            endpoints: Arc::clone(&self.endpoints),
            timeout: self.timeout,
            at: self.at,
            pending: false,
            client: None,
            stale: false,
        }
    }
}

impl Way {
    pub(super) fn new(config: EtcdConfig) -> Result<Way, EtcdConfigError> {
        if config.endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoint);
        }
        let mut endpoints = Vec::with_capacity(config.endpoints.len());
        for given in &config.endpoints {
            endpoints.push(endpoint(given, &config)?);
        }
        let timeout = config.timeout;
        let at = anywhere(endpoints.len());
        let (config, endpoints) = (Arc::new(config), endpoints.into());
        Ok(Way { config, endpoints, timeout, at, pending: false, client: None, stale: false })
    }

    /// Another one, with its own bound on each attempt; it begins anywhere.
    pub(super) fn twin(&self, timeout: Duration) -> Way {
        Way { timeout, at: anywhere(self.endpoints.len()), ..self.clone() }
    }

    /// How many endpoints there are to try.
    pub(super) fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The next attempt goes to the next endpoint, over a new connection.
    pub(super) fn move_on(&mut self) {
        self.at = (self.at + 1) % self.endpoints.len();
        self.client = None;
    }

    /// Reads keys. That does no harm when it is carried out twice, so it is tried until an endpoint answers, each once
    /// (a single one twice).
    pub(super) async fn read(&mut self, key: &[u8], options: &GetOptions) -> Result<GetResponse, Failure> {
        let ask = |mut kv: KvClient| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        self.tried(ask, |failure| matches!(failure, Failure::Elsewhere(_) | Failure::Open(_))).await
    }

    /// A transaction, which may not be carried out twice: tried at the next endpoint only while it is certain that
    /// nothing has happened.
    pub(super) async fn write(&mut self, transaction: &Txn) -> Result<TxnResponse, Failure> {
        let ask = |mut kv: KvClient| {
            let transaction = transaction.clone();
            async move { kv.txn(transaction).await }
        };
        self.tried(ask, |failure| matches!(failure, Failure::Elsewhere(_))).await
    }

    /// Writes a key without a value, by the same rule.
    pub(super) async fn touch(&mut self, key: &[u8]) -> Result<PutResponse, Failure> {
        let ask = |mut kv: KvClient| {
            let key = key.to_vec();
            async move { kv.put(key, Vec::new(), None).await }
        };
        self.tried(ask, |failure| matches!(failure, Failure::Elsewhere(_))).await
    }

    async fn tried<A, F>(
        &mut self,
        ask: impl Fn(KvClient) -> F,
        again: impl Fn(&Failure) -> bool,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<A, Error>>,
    {
        // Where there is only one, it may be a connection of before its restart that fails.
        let mut left = self.endpoints.len().max(2);
        let mut fresh_token = false;
        let mut before = Vec::new();
        loop {
            let failure = match self.call(&ask).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match &failure {
                Failure::Token(_) if !fresh_token => {
                    fresh_token = true;
                    self.forget_token();
                    continue;
                }
                Failure::Elsewhere(_) | Failure::Open(_) => self.move_on(),
                Failure::Refused(_) | Failure::Token(_) | Failure::Compacted | Failure::TooLarge(_) => {}
            }
            left -= 1;
            if left == 0 || !again(&failure) {
                return Err(failure.after(&before));
            }
            before.push(failure.what());
        }
    }

    /// One attempt at a request, at the present endpoint; at the next one where the attempt before was given up by whoever
    /// waited for it.
    async fn call<A, F>(&mut self, ask: impl Fn(KvClient) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<A, Error>>,
    {
        if std::mem::replace(&mut self.pending, true) {
            self.move_on();
        }
        let answered = match self.client().await {
            Ok(client) => {
                let kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES);
                self.bounded(ask(kv)).await
            }
            Err(failure) => Err(failure),
        };
        self.pending = false;
        answered
    }

    /// Opens a watch at the present endpoint.
    pub(super) async fn watch(&mut self, key: &[u8], options: &WatchOptions) -> Result<WatchStream, Failure> {
        let mut watch = self.client().await?.watch_client().max_decoding_message_size(PIECE_BYTES);
        self.bounded(watch.watch(key, Some(options.clone()))).await
    }

    async fn bounded<A>(&self, answer: impl Future<Output = Result<A, Error>>) -> Result<A, Failure> {
        let answered = match tokio::time::timeout(self.timeout, answer).await {
            Ok(answered) => answered.map_err(|error| classify(&error)),
            Err(_) => Err(Failure::Open(format!("no answer within {:?}", self.timeout))),
        };
        answered.map_err(|failure| self.placed(failure))
    }

    /// A failure with the endpoint's name.
    pub(super) fn placed(&self, failure: Failure) -> Failure {
        let at = &self.config.endpoints[self.at];
        failure.told(|what| format!("{at}: {what}"))
    }

    /// A new token will be asked for.
    pub(super) fn forget_token(&mut self) {
        self.stale = true;
    }

    /// The client of the present endpoint, connected, with a token where one is needed. The connection is made here
    /// and not by the client, so that it is known of a request whether it can have been sent.
    async fn client(&mut self) -> Result<Client, Failure> {
        if let Some(client) = self.client.clone() {
            if self.stale {
                self.authenticated(client.refresh_token()).await?;
                self.stale = false;
            }
            return Ok(client);
        }
        let connected = tokio::time::timeout(self.timeout, self.endpoints[self.at].connect()).await;
        let channel = match connected {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(self.placed(Failure::Elsewhere(chain(&error)))),
            Err(_) => {
                let what = format!("no connection within {:?}", self.timeout);
                return Err(self.placed(Failure::Elsewhere(what)));
            }
        };
        // A member that has no leader, or is cut off from it, is to say so and not to wait.
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some((name, password)) = &self.config.user {
            options = options.with_user(name, password);
        }
        let made = Client::from_channel(Channel::Tonic(channel), Some(options));
        let client = self.authenticated(made).await?;
        self.stale = false;
        Ok(self.client.insert(client).clone())
    }

    /// Whether a token was made or not does not matter.
    async fn authenticated<A>(&self, asked: impl Future<Output = Result<A, Error>>) -> Result<A, Failure> {
        self.bounded(asked).await.map_err(|failure| {
            if let Failure::Open(what) = failure { Failure::Elsewhere(what) } else { failure }
        })
    }
}

/// Brokers with the same list of endpoints begin at different places of it.
fn anywhere(endpoints: usize) -> usize {
    let (start, _) = Uuid::new_v4().as_u64_pair();
    usize::try_from(start % endpoints.max(1) as u64).unwrap_or(0)
}

fn endpoint(given: &str, config: &EtcdConfig) -> Result<Endpoint, EtcdConfigError> {
    let wrong = |why: String| EtcdConfigError::Endpoint { given: given.to_owned(), why };
    let with_scheme = match given.split_once("://") {
        None if config.tls.is_some() => format!("https://{given}"),
        None => format!("http://{given}"),
        Some(("http", _)) if config.tls.is_some() => {
            return Err(wrong("TLS is configured, but this says http".to_owned()));
        }
        Some(("http" | "https", _)) => given.to_owned(),
        Some(_) => return Err(wrong("neither http nor https".to_owned())),
    };
    let mut endpoint =
        Endpoint::from_shared(with_scheme.clone()).map_err(|error| wrong(error.to_string()))?;
    if endpoint.uri().port().is_none() {
        return Err(wrong("it has no port (etcd's is 2379)".to_owned()));
    }
    if !matches!(endpoint.uri().path(), "" | "/") {
        return Err(wrong("it has a path".to_owned()));
    }
    if with_scheme.starts_with("https") {
        let mut tls = ClientTlsConfig::new();
        tls = match config.tls.as_ref().and_then(|tls| tls.ca.as_ref()) {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = config.tls.as_ref().and_then(|tls| tls.identity.as_ref()) {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(tls).map_err(|error| EtcdConfigError::Tls(chain(&error)))?;
    }
    Ok(endpoint
        .connect_timeout(config.timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(SIGN_OF_LIFE)
        .keep_alive_timeout(SIGN_OF_LIFE_WAIT)
        .keep_alive_while_idle(true))
}

/// What an error means for the request that it answers.
pub(super) fn classify(error: &Error) -> Failure {
    match error {
        Error::GRpcStatus(status) => classify_status(status),
        Error::InvalidMetadataValue(_) => Failure::Refused("its token cannot be sent back".to_owned()),
        // None of them is told of a request that was sent, and none would be better elsewhere.
        Error::InvalidArgs(_) | Error::InvalidUri(_) => Failure::Refused(chain(error)),
        Error::IoError(_)
        | Error::TransportError(_)
        | Error::WatchError(_)
        | Error::Utf8Error(_)
        | Error::LeaseKeepAliveError(_)
        | Error::ElectError(_)
        | Error::EndpointError(_)
        | Error::EndpointsNotManaged
        | Error::Internal(_) => Failure::Open(chain(error)),
    }
}

fn classify_status(status: &Status) -> Failure {
    let told = told(status);
    // Only etcd itself says so; what a proxy or our own side says proves nothing about the request.
    let Some(reason) = status.message().strip_prefix("etcdserver: ") else {
        let large = status.message().contains("decoded message length too large");
        return if source_is::<ConnectError>(status) {
            Failure::Elsewhere(told)
        } else if status.code() == Code::OutOfRange && large {
            Failure::TooLarge(told)
        } else if status.code() == Code::Unimplemented {
            // No such service: it is not an etcd of the third version.
            Failure::Refused(told)
        } else {
            Failure::Open(told)
        };
    };
    match (status.code(), reason) {
        (Code::Unavailable, "no leader") | (_, "rpc not supported for learner" | "not capable") => {
            Failure::Elsewhere(told)
        }
        (Code::Unauthenticated, _) | (_, "revision of auth store is old") => Failure::Token(told),
        (Code::OutOfRange, "mvcc: required revision has been compacted") => Failure::Compacted,
        (
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::OutOfRange
            | Code::NotFound,
            _,
        ) => Failure::Refused(told),
        _ => Failure::Open(told),
    }
}

fn told(status: &Status) -> String {
    let mut told = if status.message().is_empty() {
        status.code().description().to_owned()
    } else {
        status.message().to_owned()
    };
    if let Some(source) = status.source() {
        told = format!("{told}: {}", chain(source));
    }
    told
}

/// An error with everything behind it, each once.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = source.source();
    }
    told
}

fn source_is<E: std::error::Error + 'static>(status: &Status) -> bool {
    let mut next = status.source();
    while let Some(source) = next {
        if source.is::<E>() {
            return true;
        }
        next = source.source();
    }
    false
}

#[cfg(test)]
mod tests;
