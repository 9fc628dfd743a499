//! Whoever is no broker, is another one than it says, or does not behave.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn hello(node: i32, session: u64, cluster: &str) -> Hello {
    let (node, session) = (BrokerId(node), SessionId(session));
    Hello { version: VERSION, oldest: OLDEST, cluster: cluster.to_owned(), node, session }
}

fn bytes_of(message: &Message, correlation: u64) -> Vec<u8> {
    peer::encode(correlation, message).unwrap().concat()
}

/// A connection that says so much.
async fn dialled(host: &Host, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(said).await.unwrap();
    stream
}

fn greeting(hello: Hello) -> Vec<u8> {
    let mut said = peer::MAGIC.to_vec();
    said.extend(bytes_of(&Message::Hello(hello), 0));
    said
}

/// Waits until the other side has closed, and returns what it said.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end as well.
    let _ = bounded(stream.read_to_end(&mut said)).await;
    said
}

/// One that was let in.
async fn let_in(host: &Host) -> Frames {
    host.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    let stream = dialled(host, &greeting(hello(7, 7, "cluster"))).await;
    let mut frames = Frames::new(Box::new(stream));
    bounded(frames.magic()).await.unwrap();
    assert!(matches!(next(&mut frames).await, (0, Received::Message(Message::Hello(_)))));
    frames
}

async fn next(frames: &mut Frames) -> (u64, Received) {
    let memory = Receiving::new(1 << 20);
    peer::decode(bounded(frames.next(1 << 20, &memory)).await.unwrap().0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_others_are_closed_without_a_word() {
    let host = host(1, Desk::default(), None).await;
    host.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    let mut wrong_frame = peer::MAGIC.to_vec();
    wrong_frame.extend([0x7f, 0xff, 0xff, 0xff]);
    let mut no_hello = peer::MAGIC.to_vec();
    no_hello.extend(bytes_of(&question(1), 0));
    for said in [
        &[0, 0, 0, 30, 0, 18, 0, 3][..],
        b"GET / HTTP/1.1\r\n\r\n",
        &peer::MAGIC[..6],
        b"",
        &wrong_frame,
        &no_hello,
        &greeting(hello(8, 8, "cluster")),
        &greeting(hello(7, 9, "cluster")),
    ] {
        let mut stream = dialled(&host, said).await;
        assert_eq!(rest(&mut stream).await, b"", "{said:02x?}");
    }
    let mut other = dialled(&host, &greeting(hello(7, 7, "another"))).await;
    let told = rest(&mut other).await;
    assert!(told.starts_with(&peer::MAGIC), "a broker is told whom it has reached, so that it can say so");
    assert_eq!(host.desk.count.load(Ordering::Relaxed), 0);
    assert_eq!(host.peers.figures.accepted.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_say_nothing_a_broker_is_let_in() {
    // Nobody's time to say something is over meanwhile, however busy the machine is.
    let patient = Timing { greeting: Duration::from_secs(600), ..fast() };
    let host = host_with(1, Desk::default(), None, patient).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(dialled(&host, &peer::MAGIC[..3]).await);
    }
    let_in(&host).await;
    assert_eq!(rest(&mut silent[0]).await, b"", "who has been silent for longest goes");
    assert!(host.peers.figures.refused.with_label_values(&["too_many"]).get() >= 72);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_the_view_learns_of_a_moment_later_is_let_in() {
    let host = host(1, Desk::default(), None).await;
    let stream = dialled(&host, &greeting(hello(7, 7, "cluster"))).await;
    host.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    bounded(Frames::new(Box::new(stream)).magic()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_kind_is_refused_alone() {
    let host = host(1, Desk { prompt: true, ..Desk::default() }, None).await;
    host.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    let mut said = greeting(hello(7, 7, "cluster"));
    let mut unknown = 14_i32.to_be_bytes().to_vec();
    unknown.extend(900_u16.to_be_bytes());
    unknown.extend(41_u64.to_be_bytes());
    unknown.extend([1, 2, 3, 4]);
    said.extend(unknown);
    said.extend(bytes_of(&question(5), 42));
    let stream = dialled(&host, &said).await;
    let mut frames = Frames::new(Box::new(stream));
    bounded(frames.magic()).await.unwrap();
    next(&mut frames).await;
    assert_eq!(next(&mut frames).await, (41, Received::Message(Message::UnsupportedKind(900))));
    assert_eq!(next(&mut frames).await, (42, Received::Message(standings(&question(5)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_a_connection_and_no_other() {
    let (one, two) = pair(Desk { prompt: true, ..Desk::default() }).await;
    let up = one.up(2, None).await;
    two.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    let answer = bytes_of(&standings(&question(1)), 1);
    let mut half = bytes_of(&question(1), 1);
    half.truncate(half.len() - 3);
    let length = u8::try_from(half.len() - 4).unwrap();
    half[3] = length;
    for bad in [&[0, 0, 0, 3, 1, 2, 3][..], &[0xff, 0xff, 0xff, 0xff], &answer, &half] {
        let mut said = greeting(hello(7, 7, "cluster"));
        said.extend_from_slice(bad);
        let mut stream = dialled(&two, &said).await;
        rest(&mut stream).await;
    }
    assert_eq!(one.peers.ask(BrokerId(2), question(1), LONG).await.unwrap(), standings(&question(1)));
    assert_eq!(one.up(2, None).await, up);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_take_answers_is_not_read_from() {
    let host = host(1, Desk { prompt: true, ..Desk::default() }, None).await;
    host.town.knows(7, 7, "127.0.0.1:1".parse().unwrap());
    let mut stream = dialled(&host, &greeting(hello(7, 7, "cluster"))).await;
    let many = Message::StandingQuery(StandingQuery { partitions: (0..10_000).map(partition).collect() });
    let (many, mut sent) = (bytes_of(&many, 1), 0);
    // Until the way there is full: what nobody reads stays on it.
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(300), stream.write_all(&many)).await {
        written.unwrap();
        sent += 1;
        assert!(sent < 2000, "it is read from for ever");
    }
    let taken = host.desk.count.load(Ordering::Relaxed);
    assert!(taken < sent, "{taken} of {sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_on_either_side_is_an_end() {
    let timing = Timing { dead_after: Duration::from_millis(300), ..fast() };
    let host = host_with(1, Desk::default(), None, timing).await;
    // One that asks nothing, not even whether anybody is there.
    let mut frames = let_in(&host).await;
    let memory = Receiving::new(1 << 20);
    assert!(matches!(
        bounded(frames.next(1 << 20, &memory)).await,
        Err(ReadError::End | ReadError::Socket(_))
    ));
    // One that greets, and then answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    host.town.knows(9, 9, listener.local_addr().unwrap());
    let (mut stream, _) = bounded(listener.accept()).await.unwrap();
    stream.write_all(&greeting(hello(9, 9, "cluster"))).await.unwrap();
    let first = host.up(9, None).await;
    host.down(9).await;
    // It is tried again, and again it must be who it says.
    let (mut again, _) = bounded(listener.accept()).await.unwrap();
    again.write_all(&greeting(hello(8, 9, "cluster"))).await.unwrap();
    let (mut third, _) = bounded(listener.accept()).await.unwrap();
    third.write_all(&greeting(hello(9, 9, "cluster"))).await.unwrap();
    assert_ne!(host.up(9, None).await.number, first.number);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_connection_of_a_peer_is_the_one() {
    let host = host(1, Desk::default(), None).await;
    let mut older = let_in(&host).await;
    let _newer = let_in(&host).await;
    let memory = Receiving::new(1 << 20);
    assert!(matches!(
        bounded(older.next(1 << 20, &memory)).await,
        Err(ReadError::End | ReadError::Socket(_))
    ));
}
