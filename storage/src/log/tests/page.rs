//! `docs/storage-format.md` shows bytes that the code writes.

use felix_protocol::batch::{BatchHeader, patched_head};
use felix_protocol::ids::LogId;

use super::*;
use crate::index::{IndexEntry, OffsetEntry, TimeEntry, txn};
use crate::producers::snapshot;
use crate::replicas::Replica;
use crate::seal::Running;
use crate::{Producers, Replicas};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/storage-format.md");

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let letters: String =
            line.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect();
        text.push_str(&format!("{:06x}  {:<47}  {letters}\n", at * 16, hex.join(" ")));
    }
    text
}

fn stored_batch() -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.push(1_700_000_000_000, Some(b"k"), Some(b"v"));
    let batch = builder.build().unwrap();
    let mut bytes = patched_head(batch.bytes(), 7, generation(3)).to_vec();
    bytes.extend_from_slice(&batch.bytes()[bytes.len()..]);
    bytes
}

fn entries<E: IndexEntry>(entries: &[E]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        entry.encode(100, &mut bytes);
    }
    bytes
}

/// One commit of one row, without the zeros that are kept in reserve behind it.
fn table() -> Vec<u8> {
    let disk = MemDisk::new();
    let dir = data_dir(&disk);
    let (replicas, _) = Replicas::open(&dir).unwrap();
    let row = Replica {
        log_id: LogId(Uuid::from_u128(0xAAAA_BBBB_CCCC_DDDD_EEEE_FFFF_0000_1111)),
        accepted: generation(3),
        mark: 8,
        mark_generation: generation(3),
        log_start: 0,
        synced: 8,
        clean: true,
        unsynced: false,
        diverged: false,
    };
    replicas.commit(replicas.stage(partition(), row)).unwrap();
    disk.content(&Path::new("/data").join(layout::REPLICAS)).unwrap()[..192].to_vec()
}

fn producers() -> Producers {
    let mut producers = Producers::default();
    let batch = numbered(5, 1, 0, 2);
    producers.record(batch.header(), batch.bytes(), NOW);
    producers
}

#[test]
fn the_page_shows_the_bytes_that_the_code_writes() {
    let batch = stored_batch();
    let mut running = Running::new();
    running.add(&BatchHeader::parse(&batch).unwrap(), &batch, 7);
    let mut map = GenerationMap::default();
    map.begin(generation(1), 0);
    map.begin(generation(3), 7);
    let aborted = txn::AbortedTransaction {
        producer_id: 5,
        first_offset: 110,
        last_offset: 121,
        last_stable_offset: 110,
    };
    let shown = [
        ("a batch", hex(&batch)),
        (
            "an offset index",
            hex(&entries(&[
                OffsetEntry { offset: 107, position: 4200 },
                OffsetEntry { offset: 121, position: 8500 },
            ])),
        ),
        ("a time index", hex(&entries(&[TimeEntry { timestamp: 1_700_000_000_000, offset: 107 }]))),
        ("an index of aborted transactions", hex(&txn::encode(&[aborted]))),
        ("a snapshot", hex(&snapshot::encode(&producers()))),
        ("a generation map", layout::format_epoch_checkpoint(&map)),
        ("a seal", hex(&running.sealed(running.seal(7, 8, false)).encode())),
        ("a table of copies", hex(&table())),
    ];
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut wanted = page.clone();
    for (name, text) in shown {
        let mark = format!("<!-- bytes of {name} -->\n```text\n");
        let from = wanted.find(&mark).unwrap_or_else(|| panic!("the page does not show {name}")) + mark.len();
        let to = from + wanted[from..].find("```").unwrap();
        wanted.replace_range(from..to, &text);
    }
    if std::env::var_os("FELIX_BLESS").is_some() {
        std::fs::write(PAGE, &wanted).unwrap();
    } else {
        assert!(
            page == wanted,
            "docs/storage-format.md is not what the code writes; FELIX_BLESS=1 rewrites it"
        );
    }
    // Every kind of file has its place on the page.
    for kind in Kind::ALL {
        assert!(page.contains(&format!("`.{}`", kind.ending())), "{kind:?}");
    }
}
