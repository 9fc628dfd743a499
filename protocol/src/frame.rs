//! Frames: a length, a header, a body.
//!
//! The way in: [`split`] cuts a frame off what the socket gave; [`Request::parse`] reads its header;
//! [`Request::check`] walks the body against its layout (see [`guard`]) without allocating anything; only
//! then [`CheckedRequest::decode`] makes a message of it. The way out: [`encode_response`], or
//! [`response_head`] in front of pieces that are already encoded.
//!
//! Deliberately absent: which APIs are served in which versions (the broker's list of handlers decides),
//! and the socket.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::messages::{self, ApiKey, ApiRequest, Encodable, StrBytes};

pub mod guard;
mod layout;
pub mod throttle;

pub use guard::{Refusal, Weight, versions};

/// Bytes of the length in front of every frame.
pub const LENGTH_BYTES: usize = 4;

/// Why a frame is refused. Kafka answers none of these: the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length in front is negative, or beyond what one request may have.
    #[error("frame of {length} bytes, at most {max} are allowed")]
    Length {
        /// The length that was read.
        length: i32,
        /// The limit.
        max: usize,
    },
    /// The frame ends within its header.
    #[error("frame of {0} bytes ends within its header")]
    Short(usize),
    /// An API key that Kafka does not have, or not for clients.
    #[error("unknown API key {key} (version {version})")]
    UnknownApi {
        /// The key.
        key: i16,
        /// The version beside it.
        version: i16,
    },
    /// A header that is not one.
    #[error("bad request header: {0}")]
    Header(&'static str),
    /// The body does not follow the layout of its API and version.
    #[error("bad {api:?} request, version {version}: {refusal}")]
    Body {
        /// Which API.
        api: ApiKey,
        /// Which version.
        version: i16,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// The body passed the guard and still could not be decoded.
    #[error("cannot decode {api:?} request, version {version}: {reason}")]
    Decode {
        /// Which API.
        api: ApiKey,
        /// Which version.
        version: i16,
        /// The decoder's words.
        reason: String,
    },
    /// A response that its version cannot carry: a mistake of ours.
    #[error("cannot encode {api:?} response, version {version}: {reason}")]
    Encode {
        /// Which API.
        api: ApiKey,
        /// Which version.
        version: i16,
        /// The encoder's words.
        reason: String,
    },
}

/// What [`split`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Split {
    /// One whole frame, without its length.
    Frame(Bytes),
    /// Not there yet: so many bytes more are needed (for the length itself, or for the frame).
    Missing(usize),
}

/// The length of a frame from the bytes in front of it, refused when beyond `max`.
pub fn frame_length(prefix: [u8; LENGTH_BYTES], max: usize) -> Result<usize, FrameError> {
    let length = i32::from_be_bytes(prefix);
    usize::try_from(length).ok().filter(|length| *length <= max).ok_or(FrameError::Length { length, max })
}

/// Takes one whole frame off the front of `buffer` without copying it. Reserves nothing: the caller sees how
/// much is missing and may first ask its memory budget.
pub fn split(buffer: &mut BytesMut, max: usize) -> Result<Split, FrameError> {
    let Some(prefix) = buffer.first_chunk::<LENGTH_BYTES>() else {
        return Ok(Split::Missing(LENGTH_BYTES - buffer.len()));
    };
    let length = frame_length(*prefix, max)?;
    let have = buffer.len() - LENGTH_BYTES;
    if have < length {
        return Ok(Split::Missing(length - have));
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Split::Frame(buffer.split_to(length).freeze()))
}

/// The header of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Which API.
    pub api: ApiKey,
    /// Which version of it. Not yet compared with what is served.
    pub version: i16,
    /// The client's number for the request, sent back with the response.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<StrBytes>,
}

/// A request whose header is read and whose body is not yet looked at.
#[derive(Clone, Debug)]
pub struct Request {
    /// The header.
    pub header: RequestHeader,
    /// The body, unchecked. Safe to compare and to drop, not to decode.
    pub body: Bytes,
}

impl Request {
    /// Reads the header of `frame`. Unknown tagged fields in it are skipped.
    pub fn parse(mut frame: Bytes) -> Result<Request, FrameError> {
        let whole = frame.len();
        if whole < 8 {
            return Err(FrameError::Short(whole));
        }
        let (key, version, correlation_id) = (frame.get_i16(), frame.get_i16(), frame.get_i32());
        let api = ApiKey::try_from(key).map_err(|()| FrameError::UnknownApi { key, version })?;
        if frame.len() < 2 {
            return Err(FrameError::Short(whole));
        }
        let client_id =
            match frame.get_i16() {
                -1 => None,
                length => {
                    let length = usize::try_from(length)
                        .map_err(|_| FrameError::Header("the client id has a negative length"))?;
                    if frame.len() < length {
                        return Err(FrameError::Short(whole));
                    }
                    let bytes = frame.split_to(length);
                    // Kafka reads a client id that is not UTF-8 with replacement characters; so do we.
                    Some(StrBytes::from_utf8(bytes.clone()).unwrap_or_else(|_| {
                        StrBytes::from_string(String::from_utf8_lossy(&bytes).into_owned())
                    }))
                }
            };
        if messages::request_header_version(api, version) >= 2 {
            let rest = guard::skip_tags(&frame).map_err(|_| FrameError::Header("bad tagged fields"))?;
            frame.advance(frame.len() - rest);
        }
        Ok(Request { header: RequestHeader { api, version, correlation_id, client_id }, body: frame })
    }

    /// Walks the body against its layout. Only what passes can be decoded.
    pub fn check(self) -> Result<CheckedRequest, FrameError> {
        let Request { header, body } = self;
        match guard::check(header.api, header.version, &body) {
            Ok(weight) => {
                let body = body.slice(..body.len() - weight.beyond);
                Ok(CheckedRequest { header, body, weight })
            }
            Err(refusal) => Err(FrameError::Body { api: header.api, version: header.version, refusal }),
        }
    }
}

/// A request whose body follows its layout.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    header: RequestHeader,
    body: Bytes,
    weight: Weight,
}

impl CheckedRequest {
    /// The header.
    pub fn header(&self) -> &RequestHeader {
        &self.header
    }

    /// What decoding will cost in memory.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// The encoded body, without what the client sent behind it.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Decodes the body. Strings and records in the message are slices of the frame, not copies.
    pub fn decode<T: RequestBody>(&self) -> Result<T, FrameError> {
        let RequestHeader { api, version, .. } = self.header;
        let fail = |reason: String| FrameError::Decode { api, version, reason };
        if T::KEY != api as i16 {
            return Err(fail(format!("asked for the request of key {}", T::KEY)));
        }
        let mut body = self.body.clone();
        let layout = messages::request_layout(api, version);
        let message = T::take(&mut body, layout).map_err(fail)?;
        if body.is_empty() { Ok(message) } else { Err(fail(format!("{} bytes are left", body.len()))) }
    }
}

/// The start of a response frame: length (counting `body_bytes` that follow), correlation id and, from the
/// first flexible version on, an empty set of tagged fields. `spare` bytes of room stay behind it.
pub fn response_head(
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    body_bytes: usize,
    spare: usize,
) -> Result<BytesMut, FrameError> {
    let flexible = messages::response_header_version(api, version) >= 1;
    let length = 4 + usize::from(flexible) + body_bytes;
    let length = i32::try_from(length).map_err(|_| FrameError::Encode {
        api,
        version,
        reason: format!("{length} bytes do not fit a frame"),
    })?;
    let mut head = BytesMut::with_capacity(LENGTH_BYTES + 5 + spare);
    head.put_i32(length);
    head.put_i32(correlation_id);
    if flexible {
        head.put_u8(0);
    }
    Ok(head)
}

/// A request that can be read: every request of the crate, and the few that are read by hand.
pub trait RequestBody: Sized {
    /// The API's key.
    const KEY: i16;

    /// Takes the body, in the layout of `version`, off the front of `body`, which the guard has walked.
    fn take(body: &mut Bytes, version: i16) -> Result<Self, String>;
}

impl<T: ApiRequest> RequestBody for T {
    const KEY: i16 = <T as ApiRequest>::KEY;

    fn take(body: &mut Bytes, version: i16) -> Result<Self, String> {
        T::decode(body, version).map_err(|error| error.to_string())
    }
}

/// A response that can be written: every response of the crate, and the few that are written by hand.
pub trait ResponseBody {
    /// Appends the body in the layout of `version`.
    fn put(&self, version: i16, out: &mut BytesMut) -> Result<(), String>;

    /// How many bytes that will take, when it is cheap to know.
    fn size(&self, version: i16) -> usize {
        let _ = version;
        0
    }
}

impl<T: Encodable> ResponseBody for T {
    fn put(&self, version: i16, out: &mut BytesMut) -> Result<(), String> {
        self.encode(out, version).map_err(|error| error.to_string())
    }

    fn size(&self, version: i16) -> usize {
        self.compute_size(version).unwrap_or(0)
    }
}

/// A whole response frame, its length included, in one buffer.
pub fn encode_response<T: ResponseBody>(
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    response: &T,
) -> Result<Bytes, FrameError> {
    let fail = |reason: String| FrameError::Encode { api, version, reason };
    let layout = messages::response_layout(api, version);
    let mut frame = response_head(api, version, correlation_id, 0, response.size(layout))?;
    response.put(layout, &mut frame).map_err(fail)?;
    let length = frame.len() - LENGTH_BYTES;
    let length = i32::try_from(length).map_err(|_| fail(format!("{length} bytes do not fit a frame")))?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

#[cfg(test)]
mod tests;
