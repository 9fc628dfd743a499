//! Records inside a batch, seen in place: numbers of variable length, no copies, no allocation.
//!
//! A record is its length, then attributes (unused), timestamp delta, offset delta, key, value and headers.
//! Header keys may repeat and their order is part of the record, so headers stay a list.

use thiserror::Error;

use super::compression::Codec;

/// What is wrong with the records of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordFault {
    /// The bytes end within a record, or before all announced records came.
    #[error("the batch ends within its records")]
    Short,
    /// Bytes behind the last announced record.
    #[error("bytes are left behind the last record")]
    Remaining,
    /// A number of variable length that is longer than its type.
    #[error("a number is longer than its type")]
    Varint,
    /// A length that no record, key, value or header can have.
    #[error("impossible length {0}")]
    Length(i64),
    /// The fields of a record take more or fewer bytes than the record announces.
    #[error("a record's fields do not fill its {0} bytes")]
    Fields(usize),
    /// A number of headers that the record cannot hold.
    #[error("impossible number of headers {0}")]
    Headers(i32),
    /// One record is larger than allowed.
    #[error("a record of {bytes} bytes, at most {max} are allowed")]
    RecordTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The batch unpacks to more than allowed.
    #[error("the batch unpacks to more than {max} bytes")]
    BatchTooLarge {
        /// The limit.
        max: u64,
    },
    /// Codec bits without meaning.
    #[error("unknown codec {0}")]
    Codec(i16),
    /// The codec cannot unpack the bytes.
    #[error("{codec} cannot unpack the batch: {reason}")]
    Unpack {
        /// Which codec.
        codec: Codec,
        /// Its words.
        reason: String,
    },
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The whole record behind its length.
    pub body: &'a [u8],
    /// Its offset less the batch's base offset.
    pub offset_delta: i32,
    /// Its timestamp less the batch's base timestamp.
    pub timestamp_delta: i64,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// The value, or null.
    pub value: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: Headers<'a>,
}

impl<'a> Record<'a> {
    /// Reads the record that `body` is.
    pub fn parse(body: &'a [u8]) -> Result<Record<'a>, RecordFault> {
        let mut rest = body;
        let fields =
            |fault| if fault == RecordFault::Short { RecordFault::Fields(body.len()) } else { fault };
        Record::fields(body, &mut rest).map_err(fields).and_then(|record| {
            if rest.is_empty() { Ok(record) } else { Err(RecordFault::Fields(body.len())) }
        })
    }

    fn fields(body: &'a [u8], rest: &mut &'a [u8]) -> Result<Record<'a>, RecordFault> {
        take(rest, 1)?;
        let timestamp_delta = varlong(rest)?;
        let offset_delta = varint(rest)?;
        let key = nullable(rest)?;
        let value = nullable(rest)?;
        let count = varint(rest)?;
        // Each header has two lengths at least.
        let possible = u32::try_from(count).ok().filter(|count| *count as usize <= rest.len() / 2);
        let count = possible.ok_or(RecordFault::Headers(count))?;
        let bytes = *rest;
        for _ in 0..count {
            header(rest)?;
        }
        let headers = Headers { count, bytes: &bytes[..bytes.len() - rest.len()] };
        Ok(Record { body, offset_delta, timestamp_delta, key, value, headers })
    }
}

/// The headers of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl Headers<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its key: UTF-8 by agreement, which nobody checks.
    pub key: &'a [u8],
    /// Its value, or null.
    pub value: Option<&'a [u8]>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        // The record was walked when it was parsed, so this cannot fail.
        header(&mut self.bytes).ok()
    }
}

/// Iterates over the records of an uncompressed batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Records<'a> {
    /// `count` records in `bytes`, which must be exactly they.
    pub fn new(bytes: &'a [u8], count: u32) -> Records<'a> {
        Records { rest: bytes, left: count }
    }

    fn read(&mut self) -> Result<Record<'a>, RecordFault> {
        let body = nullable(&mut self.rest)?.ok_or(RecordFault::Length(-1))?;
        let record = Record::parse(body)?;
        if self.left == 1 && !self.rest.is_empty() {
            return Err(RecordFault::Remaining);
        }
        Ok(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let record = self.read();
        self.left = if record.is_ok() { self.left - 1 } else { 0 };
        Some(record)
    }
}

fn header<'a>(rest: &mut &'a [u8]) -> Result<Header<'a>, RecordFault> {
    let key = nullable(rest)?.ok_or(RecordFault::Length(-1))?;
    Ok(Header { key, value: nullable(rest)? })
}

/// A length and so many bytes; length -1 is null.
fn nullable<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordFault> {
    match varint(rest)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) => take(rest, length).map(Some),
            Err(_) => Err(RecordFault::Length(i64::from(length))),
        },
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], RecordFault> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(RecordFault::Short)?;
    *rest = behind;
    Ok(taken)
}

/// What of a record's body follows its timestamp.
pub(super) fn without_timestamp(body: &[u8]) -> Result<&[u8], RecordFault> {
    let mut rest = body;
    take(&mut rest, 1)?;
    varlong(&mut rest)?;
    Ok(rest)
}

/// A zigzag number of up to 32 bits.
pub(super) fn varint(rest: &mut &[u8]) -> Result<i32, RecordFault> {
    let number = varlong(rest)?;
    i32::try_from(number).map_err(|_| RecordFault::Varint)
}

/// A zigzag number of up to 64 bits.
fn varlong(rest: &mut &[u8]) -> Result<i64, RecordFault> {
    let mut raw: u64 = 0;
    for at in 0..10 {
        let (byte, behind) = rest.split_first().ok_or(RecordFault::Short)?;
        *rest = behind;
        if at == 9 && *byte > 1 {
            return Err(RecordFault::Varint);
        }
        raw |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            return Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed());
        }
    }
    Err(RecordFault::Varint)
}

/// Writes a zigzag number.
pub(super) fn put_varlong(out: &mut Vec<u8>, number: i64) {
    let mut raw = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while raw >= 0x80 {
        out.push((raw & 0x7f) as u8 | 0x80);
        raw >>= 7;
    }
    out.push((raw & 0x7f) as u8);
}

/// Bytes that [`put_varlong`] writes.
pub(super) fn varlong_bytes(number: i64) -> usize {
    let raw = ((number << 1) ^ (number >> 63)).cast_unsigned();
    (64 - (raw | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(bytes: &[u8]) -> Result<Record<'_>, RecordFault> {
        Record::parse(bytes)
    }

    #[test]
    fn a_record_with_everything() {
        // attributes 0, timestamp +1, offset +2, key "k", value null, headers a=1, a=null.
        let body = [0, 2, 4, 2, b'k', 1, 4, 2, b'a', 2, b'1', 2, b'a', 1];
        let record = record(&body).unwrap();
        assert_eq!((record.timestamp_delta, record.offset_delta), (1, 2));
        assert_eq!((record.key, record.value), (Some(&b"k"[..]), None));
        let headers: Vec<_> = record.headers.collect();
        let a = &b"a"[..];
        assert_eq!(headers, [Header { key: a, value: Some(b"1") }, Header { key: a, value: None }]);
    }

    #[test]
    fn what_a_record_must_not_be() {
        let cases: [(&[u8], RecordFault); 8] = [
            (&[], RecordFault::Fields(0)),
            (&[0, 0, 0, 1, 1], RecordFault::Fields(5)),
            (&[0, 0, 0, 1, 1, 0, 0], RecordFault::Fields(7)),
            (&[0, 0, 0, 3, 1, 0], RecordFault::Length(-2)),
            (&[0, 0, 0, 1, 1, 1], RecordFault::Headers(-1)),
            (&[0, 0, 0, 1, 1, 100], RecordFault::Headers(50)),
            (&[0, 0, 0, 1, 1, 2, 1, 1], RecordFault::Length(-1)),
            (&[0, 0, 0x80, 0x80, 0x80, 0x80, 0x20, 1, 1, 0], RecordFault::Varint),
        ];
        for (body, fault) in cases {
            assert_eq!(record(body), Err(fault), "{body:?}");
        }
    }

    #[test]
    fn the_count_must_fit_the_bytes() {
        let one = [12, 0, 0, 0, 1, 1, 0];
        assert_eq!(Records::new(&one, 1).collect::<Result<Vec<_>, _>>().unwrap().len(), 1);
        let two: Vec<_> = Records::new(&one, 2).collect();
        assert_eq!(two[1], Err(RecordFault::Short));
        let three = [&one[..], &one, &one].concat();
        assert_eq!(Records::new(&three, 2).nth(1), Some(Err(RecordFault::Remaining)));
        assert_eq!(Records::new(&three, 0).next(), None);
    }

    proptest! {
        #[test]
        fn numbers_go_both_ways(number: i64) {
            let mut bytes = Vec::new();
            put_varlong(&mut bytes, number);
            prop_assert_eq!(bytes.len(), varlong_bytes(number));
            let mut rest = &bytes[..];
            prop_assert_eq!(varlong(&mut rest), Ok(number));
            prop_assert!(rest.is_empty());
            let mut rest = &bytes[..];
            prop_assert_eq!(varint(&mut rest).ok(), i32::try_from(number).ok());
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), count in 0u32..5) {
            for record in Records::new(&bytes, count).flatten() {
                prop_assert_eq!(record.headers.len(), record.headers.count());
            }
        }
    }
}
