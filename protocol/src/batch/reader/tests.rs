use std::io::Write;

use super::*;
use crate::batch::BatchBuilder;
use crate::batch::compression::Pack;

fn read(batch: &[u8], limits: Limits) -> Result<Vec<Vec<u8>>, RecordFault> {
    let header = BatchHeader::parse(batch).unwrap();
    let mut records = BatchRecords::new(&header, batch, limits)?;
    let mut values = Vec::new();
    while let Some(record) = records.next() {
        values.push(record?.value.unwrap_or_default().to_vec());
    }
    Ok(values)
}

#[test]
fn records_of_all_sizes_pass_through_the_window() {
    let sizes = [0, 1, 100, WINDOW_BYTES - 12, WINDOW_BYTES, WINDOW_BYTES + 1, 100_000, 3, 1_000_000, 0];
    for codec in Codec::ALL {
        let mut batch = BatchBuilder::new().codec(codec, codec.default_level());
        for (at, size) in sizes.into_iter().enumerate() {
            batch.push(1, None, Some(&vec![at as u8; size]));
        }
        let batch = batch.build().unwrap();
        let values = read(batch.bytes(), Limits::NONE).unwrap();
        assert_eq!(values.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{codec}");
        for (at, value) in values.iter().enumerate() {
            assert!(value.iter().all(|byte| *byte == at as u8));
        }
    }
}

#[test]
fn a_length_that_lies_does_not_allocate() {
    // One record that says it has 2^31-1 bytes, packed.
    for codec in Codec::ALL.into_iter().skip(1) {
        let mut pack = Pack::new(codec, codec.default_level(), Vec::new()).unwrap();
        pack.write_all(&[0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0]).unwrap();
        let bytes = pack.finish().unwrap();
        let mut stream = Stream::new(codec, &bytes, 1, Limits::NONE).unwrap();
        assert_eq!(stream.next(), Some(Err(RecordFault::Short)), "{codec}");
        assert!(stream.window.len() <= 2 * WINDOW_BYTES, "{codec}");
        assert_eq!(stream.next(), None);
    }
}

#[test]
fn the_default_limits_grow_with_the_batch() {
    assert_eq!(Limits::for_packed(100).batch_bytes, 64 << 20);
    assert_eq!(Limits::for_packed(1 << 20).batch_bytes, 300 << 20);
}
