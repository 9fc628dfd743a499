//! The response of DescribeLogDirs up to version 5, which says of each directory whether it is cordoned
//! (KIP-1066). The crate ends at version 4.

use bytes::{BufMut, BytesMut};

use super::{DescribeLogDirsResponse, Encodable};
use crate::frame::ResponseBody;

/// A [`DescribeLogDirsResponse`] that can be encoded in version 5 too. No directory of ours is ever cordoned.
#[derive(Clone, Debug, PartialEq)]
pub struct LogDirs(pub DescribeLogDirsResponse);

impl ResponseBody for LogDirs {
    fn put(&self, version: i16, out: &mut BytesMut) -> Result<(), String> {
        let LogDirs(response) = self;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        if version < 5 {
            return response.encode(out, version).map_err(|error| text(&error));
        }
        out.put_i32(response.throttle_time_ms);
        out.put_i16(response.error_code);
        // A broker has few directories: the compact count is one byte.
        let count = u8::try_from(response.results.len() + 1).ok().filter(|count| *count < 0x80);
        out.put_u8(count.ok_or("too many directories")?);
        for result in &response.results {
            result.encode(out, 4).map_err(|error| text(&error))?;
            // Version 4 ends with an empty set of tagged fields; the new field goes before it.
            if !result.unknown_tagged_fields.is_empty() {
                return Err("tagged fields are not supported here".to_owned());
            }
            out.truncate(out.len() - 1);
            out.put_slice(&[0, 0]);
        }
        out.put_u8(0);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the frames are small")]
mod tests {
    use super::*;
    use crate::frame::encode_response;
    use crate::messages::describe_log_dirs_response::{
        DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
    };
    use crate::messages::{ApiKey, StrBytes};

    fn response() -> DescribeLogDirsResponse {
        let partition = DescribeLogDirsPartition::default().with_partition_size(5);
        let topic = DescribeLogDirsTopic::default().with_partitions(vec![partition]);
        let result = DescribeLogDirsResult::default()
            .with_log_dir(StrBytes::from_static_str("/d"))
            .with_topics(vec![topic])
            .with_total_bytes(9)
            .with_usable_bytes(8);
        DescribeLogDirsResponse::default().with_results(vec![result])
    }

    #[test]
    fn version_5_is_version_4_and_a_byte_for_each_directory() {
        let four = encode_response(ApiKey::DescribeLogDirs, 4, 1, &LogDirs(response())).unwrap();
        assert_eq!(four, encode_response(ApiKey::DescribeLogDirs, 4, 1, &response()).unwrap());
        let five = encode_response(ApiKey::DescribeLogDirs, 5, 1, &LogDirs(response())).unwrap();
        let mut expected = four.to_vec();
        expected[..4].copy_from_slice(&(four.len() as i32 - 3).to_be_bytes());
        let end = expected.len();
        // usable_bytes, then cordoned, the directory's tags, the response's tags.
        expected.splice(end - 2.., [0, 0, 0]);
        assert_eq!(five, expected);
        assert!(encode_response(ApiKey::DescribeLogDirs, 5, 1, &response()).is_err());
    }
}
