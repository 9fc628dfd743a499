//! Who is believed: mutual TLS between brokers, whose certificates name their node.
//!
//! Node N's certificate has the DNS name `node-N` among its alternative names and is signed by the one authority that
//! all brokers are told of; host names and addresses do not matter. Both sides show one, in TLS 1.3.

use std::io;
use std::sync::Arc;

use felix_protocol::ids::BrokerId;
use thiserror::Error;
use tokio::io::split;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::wire::Wire;

/// Certificates that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file that holds no such thing.
    #[error("{what} cannot be read: {why}")]
    Pem {
        /// Which.
        what: &'static str,
        /// The reader's words.
        why: String,
    },
    /// The certificate is another node's, or nobody's.
    #[error("the certificate is not for {0}: its alternative names must have that DNS name")]
    Name(String),
    /// What goes together does not.
    #[error("certificate, key and authority do not go together: {0}")]
    Unfit(String),
}

/// Both sides of it.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

/// The name that a node's certificate bears.
pub fn name_of(node: BrokerId) -> String {
    format!("node-{node}")
}

/// Whether a certificate, known to be signed, is that node's.
pub fn is_for(certificate: &CertificateDer<'_>, node: BrokerId) -> bool {
    let (parsed, name) = (ParsedCertificate::try_from(certificate), ServerName::try_from(name_of(node)));
    matches!((parsed, name), (Ok(parsed), Ok(name)) if verify_server_name(&parsed, &name).is_ok())
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(TlsError::Pem { what, why: "no certificate is in it".to_owned() }),
        Ok(all) => Ok(all),
        Err(error) => Err(TlsError::Pem { what, why: error.to_string() }),
    }
}

impl Tls {
    /// Of PEM texts. The certificate must be `node`'s.
    pub fn new(node: BrokerId, cert: &[u8], key: &[u8], ca: &[u8]) -> Result<Tls, TlsError> {
        let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
        let chain = certificates("the certificate", cert)?;
        if !is_for(&chain[0], node) {
            return Err(TlsError::Name(name_of(node)));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| TlsError::Pem { what: "the key", why: error.to_string() })?;
        let mut roots = RootCertStore::empty();
        for root in certificates("the authority", ca)? {
            roots.add(root).map_err(|error| unfit(&error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unfit(&error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unfit(&error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unfit(&error))?;
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        Ok(Tls { acceptor, connector })
    }

    /// The dialling side: whoever answers must be `node`.
    pub async fn connect(&self, stream: TcpStream, node: BrokerId) -> io::Result<Wire> {
        let name = ServerName::try_from(name_of(node)).map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream).await?;
        let (reader, writer) = split(stream);
        Ok(Wire { reader: Box::new(reader), writer: Box::new(writer), certificate: None })
    }

    /// The accepting side: whoever dials must have a certificate, which says who that is.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Wire> {
        let stream = self.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first()).cloned();
        let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
        let (reader, writer) = split(stream);
        Ok(Wire { reader: Box::new(reader), writer: Box::new(writer), certificate: Some(shown) })
    }
}
