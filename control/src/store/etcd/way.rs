//! The way to etcd: endpoints tried in turn, TLS, name and password, and what each failure means.
//!
//! One endpoint at a time is in use, until it fails; so a failure can be told with its place, and an endpoint that is
//! down costs one request, not every third. Whether a failed request may have had an effect is decided here and
//! nowhere else ([`Failure`]).

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use felix_protocol::ids::Uuid;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::wire::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, WATCH, WatchRequest, WatchResponse,
};
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
    channel: Option<Channel>,
    token: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl Clone for Way {
    fn clone(&self) -> Self {
        Way {
            config: Arc::clone(&self.config),
            endpoints: Arc::clone(&self.endpoints),
            timeout: self.timeout,
            at: self.at,
            pending: false,
            channel: None,
            token: self.token.clone(),
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
        Ok(Way { config, endpoints, timeout, at, pending: false, channel: None, token: None })
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
        self.channel = None;
    }

    /// One attempt at a request, at the present endpoint; at the next one where the attempt before was given up by whoever
    /// waited for it.
    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + Clone + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        if std::mem::replace(&mut self.pending, true) {
            self.move_on();
        }
        let answered = match self.authenticate().await {
            Ok(()) => self.unary(path, request).await,
            Err(failure) => Err(failure),
        };
        self.pending = false;
        answered
    }

    /// A read, which does no harm when it is carried out twice: tried until an endpoint answers, each once (a single
    /// one twice).
    pub(super) async fn read<Q, A>(&mut self, path: &'static str, request: &Q) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + Clone + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.tried(path, request, |failure| matches!(failure, Failure::Elsewhere(_) | Failure::Open(_))).await
    }

    /// A request that may not be carried out twice: tried at the next endpoint only while it is certain that nothing
    /// has happened.
    pub(super) async fn write<Q, A>(&mut self, path: &'static str, request: &Q) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + Clone + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.tried(path, request, |failure| matches!(failure, Failure::Elsewhere(_))).await
    }

    async fn tried<Q, A>(
        &mut self,
        path: &'static str,
        request: &Q,
        again: impl Fn(&Failure) -> bool,
    ) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + Clone + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        // Where there is only one, it may be a connection of before its restart that fails.
        let mut left = self.endpoints.len().max(2);
        let mut fresh_token = false;
        let mut before = Vec::new();
        loop {
            let failure = match self.call(path, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match &failure {
                Failure::Token(_) if !fresh_token => {
                    fresh_token = true;
                    self.token = None;
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

    /// Opens a stream of watch answers at the present endpoint. `requests` stays open for as long as the watch is
    /// wanted.
    pub(super) async fn watch(
        &mut self,
        requests: impl tokio_stream::Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        self.authenticate().await?;
        let channel = self.channel().await?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(PIECE_BYTES);
        let request = self.dressed(requests);
        let opened = tokio::time::timeout(self.timeout, async {
            grpc.ready().await.map_err(|error| Failure::Elsewhere(chain(&error)))?;
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let answer = grpc.streaming(request, PathAndQuery::from_static(WATCH), codec).await;
            answer.map_err(|status| classify(&status))
        });
        let opened = opened.await.unwrap_or_else(|_| Err(self.silence()));
        opened.map(tonic::Response::into_inner).map_err(|failure| self.placed(failure))
    }

    /// A failure with the endpoint's name.
    pub(super) fn placed(&self, failure: Failure) -> Failure {
        let at = &self.config.endpoints[self.at];
        failure.told(|what| format!("{at}: {what}"))
    }

    /// A new token will be asked for.
    pub(super) fn forget_token(&mut self) {
        self.token = None;
    }

    fn silence(&self) -> Failure {
        Failure::Open(format!("no answer within {:?}", self.timeout))
    }

    async fn channel(&mut self) -> Result<Channel, Failure> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
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
        Ok(self.channel.insert(channel).clone())
    }

    async fn authenticate(&mut self) -> Result<(), Failure> {
        let Some((name, password)) = self.config.user.clone().filter(|_| self.token.is_none()) else {
            return Ok(());
        };
        let answer: Result<AuthenticateResponse, Failure> =
            self.unary(AUTHENTICATE, AuthenticateRequest { name, password }).await;
        let answer = match answer {
            Ok(answer) => answer,
            // Whether a token was made or not does not matter.
            Err(Failure::Open(what)) => return Err(Failure::Elsewhere(what)),
            Err(failure) => return Err(failure),
        };
        let unreadable = |_| self.placed(Failure::Refused("its token cannot be sent back".to_owned()));
        self.token = Some(answer.token.parse().map_err(unreadable)?);
        Ok(())
    }

    async fn unary<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let channel = self.channel().await?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES);
        let mut request = self.dressed(request);
        // So that the other side gives up too.
        request.set_timeout(self.timeout);
        let answered = tokio::time::timeout(self.timeout, async {
            grpc.ready().await.map_err(|error| Failure::Elsewhere(chain(&error)))?;
            let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
            answer.await.map_err(|status| classify(&status))
        });
        let answered = answered.await.unwrap_or_else(|_| Err(self.silence()));
        answered.map(tonic::Response::into_inner).map_err(|failure| self.placed(failure))
    }

    /// A request with what goes beside every one: the token, and that a member without a leader is not to take it.
    fn dressed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
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

/// What a status means for the request that it answers.
pub(super) fn classify(status: &Status) -> Failure {
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
