//! Brokers that know each other by certificates, which are made here.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate with that name, and its key.
fn signed(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

fn tls_named(authority: &Authority, node: i32, name: &str, trusted: &Authority) -> Result<Tls, TlsError> {
    let (cert, key) = signed(authority, name);
    Tls::new(BrokerId(node), cert.as_bytes(), key.as_bytes(), trusted.pem().as_bytes())
}

fn tls(authority: &Authority, node: i32) -> Tls {
    tls_named(authority, node, &format!("node-{node}"), authority).unwrap()
}

/// Whether `one` reaches `two`, once both know of each other.
async fn reaches(one: &Host, two: &Host) -> bool {
    two.town.knows(1, 1, one.address);
    one.town.knows(2, 2, two.address);
    let mut up = one.link(2).await.up();
    let refused = async {
        while two.peers.figures.refused.with_label_values(&["socket"]).get()
            + two.peers.figures.refused.with_label_values(&["identity"]).get()
            + two.peers.figures.refused.with_label_values(&["no_broker"]).get()
            + two.peers.figures.refused.with_label_values(&["silent"]).get()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    bounded(async {
        tokio::select! {
            up = up.wait_for(Option::is_some) => up.is_ok(),
            () = refused => false,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_with_certificates_of_one_authority_speak() {
    let authority = authority();
    let one = host(1, Desk::default(), Some(tls(&authority, 1))).await;
    let two = host(2, Desk { prompt: true, ..Desk::default() }, Some(tls(&authority, 2))).await;
    assert!(reaches(&one, &two).await);
    let many = Message::StandingQuery(StandingQuery { partitions: (0..50_000).map(partition).collect() });
    assert!(one.peers.ask(BrokerId(2), many.clone(), LONG).await.unwrap() == standings(&many));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_a_plain_broker_and_another_name_are_refused() {
    let (authority, foreign) = (authority(), authority());
    let certified = |node| Some(tls(&authority, node));
    let stranger =
        host(1, Desk::default(), Some(tls_named(&foreign, 1, "node-1", &authority).unwrap())).await;
    assert!(!reaches(&stranger, &host(2, Desk::default(), certified(2)).await).await);
    let plain = host(1, Desk::default(), None).await;
    assert!(!reaches(&plain, &host(2, Desk::default(), certified(2)).await).await);
    let secure = host(1, Desk::default(), certified(1)).await;
    assert!(!reaches(&secure, &host(2, Desk::default(), None).await).await);
    // Node 3's certificate, and the word of node 1: on the accepting side, and on the dialling one.
    let liar = host(3, Desk::default(), certified(3)).await;
    liar.town.own.lock().0 = BrokerId(1);
    liar.town.own.lock().1 = SessionId(1);
    let two = host(2, Desk::default(), certified(2)).await;
    assert!(!reaches(&liar, &two).await);
    assert!(two.peers.figures.refused.with_label_values(&["identity"]).get() >= 1);
    let posing = host(3, Desk::default(), certified(3)).await;
    posing.town.own.lock().0 = BrokerId(2);
    posing.town.own.lock().1 = SessionId(2);
    assert!(!reaches(&host(1, Desk::default(), certified(1)).await, &posing).await);
}

#[test]
fn a_start_with_the_wrong_files_is_refused_in_words() {
    let authority = authority();
    let say = |made: Result<Tls, TlsError>| made.err().unwrap().to_string();
    let other = say(tls_named(&authority, 12, "node-1", &authority));
    assert_eq!(other, "the certificate is not for node-12: its alternative names must have that DNS name");
    let (cert, key) = signed(&authority, "node-1");
    let (cert, key, ca) = (cert.as_bytes(), key.as_bytes(), authority.pem());
    let new = |cert: &[u8], key: &[u8], ca: &[u8]| say(Tls::new(BrokerId(1), cert, key, ca));
    assert!(new(b"", key, ca.as_bytes()).starts_with("the certificate cannot be read"));
    assert!(new(cert, b"nothing", ca.as_bytes()).starts_with("the key cannot be read"));
    assert!(new(cert, key, b"-----BEGIN").starts_with("the authority cannot be read"));
    let (_, another) = signed(&authority, "node-1");
    assert!(new(cert, another.as_bytes(), ca.as_bytes()).contains("do not go together"));
}
