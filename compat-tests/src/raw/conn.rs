//! A connection that sends requests byte by byte and reads what comes back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::wire::{R, W};

/// The longest response that a case expects.
const FRAME_LIMIT: usize = 64 << 20;

/// API keys by name, as far as cases use them.
pub mod key {
    pub const PRODUCE: i16 = 0;
    pub const FETCH: i16 = 1;
    pub const LIST_OFFSETS: i16 = 2;
    pub const METADATA: i16 = 3;
    pub const OFFSET_COMMIT: i16 = 8;
    pub const OFFSET_FETCH: i16 = 9;
    pub const FIND_COORDINATOR: i16 = 10;
    pub const JOIN_GROUP: i16 = 11;
    pub const HEARTBEAT: i16 = 12;
    pub const LEAVE_GROUP: i16 = 13;
    pub const SYNC_GROUP: i16 = 14;
    pub const DESCRIBE_GROUPS: i16 = 15;
    pub const LIST_GROUPS: i16 = 16;
    pub const API_VERSIONS: i16 = 18;
    pub const CREATE_TOPICS: i16 = 19;
    pub const DELETE_TOPICS: i16 = 20;
    pub const DELETE_RECORDS: i16 = 21;
    pub const INIT_PRODUCER_ID: i16 = 22;
    pub const OFFSET_FOR_LEADER_EPOCH: i16 = 23;
    pub const DESCRIBE_ACLS: i16 = 29;
    pub const DESCRIBE_CONFIGS: i16 = 32;
    pub const ALTER_CONFIGS: i16 = 33;
    pub const CREATE_PARTITIONS: i16 = 37;
    pub const DELETE_GROUPS: i16 = 42;
    pub const ELECT_LEADERS: i16 = 43;
    pub const INCREMENTAL_ALTER_CONFIGS: i16 = 44;
    pub const ALTER_PARTITION_REASSIGNMENTS: i16 = 45;
    pub const LIST_PARTITION_REASSIGNMENTS: i16 = 46;
    pub const OFFSET_DELETE: i16 = 47;
    pub const DESCRIBE_CLIENT_QUOTAS: i16 = 48;
    pub const ALTER_CLIENT_QUOTAS: i16 = 49;
    pub const DESCRIBE_QUORUM: i16 = 55;
    pub const UPDATE_FEATURES: i16 = 57;
    pub const DESCRIBE_CLUSTER: i16 = 60;
    pub const DESCRIBE_PRODUCERS: i16 = 61;
    pub const UNREGISTER_BROKER: i16 = 64;
    pub const DESCRIBE_TOPIC_PARTITIONS: i16 = 75;
}

/// The first version of an API whose headers carry tagged fields (none: 99).
pub fn first_flexible(key: i16) -> i16 {
    match key {
        0 | 3 => 9,
        1 => 12,
        2 | 9 | 11 => 6,
        8 => 8,
        10 | 16 | 18 | 24 | 25 | 26 | 28 => 3,
        12 | 13 | 14 | 20 | 23 | 32 => 4,
        15 | 19 => 5,
        17 | 47 => 99,
        21 | 22 | 29 | 30 | 31 | 33..=43 => 2,
        27 | 44 | 48 | 49 | 76..=79 => 1,
        _ => 0,
    }
}

/// One connection.
pub struct Connection {
    stream: TcpStream,
    next: i32,
    client: String,
}

impl Connection {
    /// Connects; `patience` bounds every read and write.
    pub fn open(address: SocketAddrV4, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address.into(), patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, next: 1, client: "raw".to_owned() })
    }

    /// The same, calling itself so.
    pub fn named(mut self, client: &str) -> Self {
        client.clone_into(&mut self.client);
        self
    }

    /// Changes how long a read waits.
    pub fn patience(&self, patience: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(patience))?)
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Says that nothing more will be sent.
    pub fn finish_sending(&self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// A framed request with its header, and its correlation id.
    pub fn frame(&mut self, key: i16, version: i16, body: &W) -> (i32, Vec<u8>) {
        let correlation = self.next;
        self.next += 1;
        let mut message = W::new().i16(key).i16(version).i32(correlation).nstr(Some(&self.client));
        if version >= first_flexible(key) {
            message = message.tags();
        }
        let message = message.raw(&body.clone().done()).done();
        (correlation, W::new().bytes(&message).done())
    }

    /// Sends a request and answers its correlation id.
    pub fn send(&mut self, key: i16, version: i16, body: &W) -> Result<i32> {
        let (correlation, frame) = self.frame(key, version, body);
        self.send_raw(&frame)?;
        Ok(correlation)
    }

    /// The next response frame: correlation id, and what follows it.
    pub fn receive(&mut self) -> Result<(i32, R)> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).context("reading the size of a response")?;
        let size = usize::try_from(i32::from_be_bytes(size)).context("a negative size")?;
        if !(4..=FRAME_LIMIT).contains(&size) {
            bail!("a response of {size} bytes");
        }
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body).context("reading a response")?;
        let mut reader = R::new(body);
        let correlation = reader.i32()?;
        Ok((correlation, reader))
    }

    /// The next response, which must belong to `correlation`; its header is taken off.
    pub fn receive_for(&mut self, correlation: i32, key: i16, version: i16) -> Result<R> {
        let (got, mut reader) = self.receive()?;
        if got != correlation {
            bail!("a response to request {got} where {correlation} is due");
        }
        // The response header of ApiVersions never has tags: the client cannot know yet what the broker speaks.
        if version >= first_flexible(key) && key != key::API_VERSIONS {
            reader.tags()?;
        }
        Ok(reader)
    }

    /// Sends a request and reads its response.
    pub fn call(&mut self, key: i16, version: i16, body: &W) -> Result<R> {
        let correlation = self.send(key, version, body)?;
        self.receive_for(correlation, key, version).with_context(|| format!("API {key} version {version}"))
    }

    /// Waits until the broker closes; fails if it sends something or keeps the connection.
    pub fn expect_close(&mut self) -> Result<()> {
        let mut byte = [0; 1];
        match self.stream.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => bail!("the broker answers instead of closing"),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => bail!("the broker does not close the connection: {error}"),
        }
    }

    /// Whether the broker answers and knows of a live broker.
    pub fn sees_a_broker(&mut self) -> Result<bool> {
        let mut answer = self.call(key::METADATA, 1, &W::new().array(0))?;
        Ok(answer.array()? > 0)
    }
}
