//! Prints the files of a data directory so that people can read them: `felix dump-log`. Opens everything for
//! reading only and takes no lock, so it may look at a directory that is in use.

use std::io::{self, Write};
use std::path::Path;

use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::ids::Offset;

use crate::disk::{Disk, DiskFile, OpenMode, read_whole};
use crate::index::txn;
use crate::index::{IndexEntry, OffsetEntry, TimeEntry, read_entries};
use crate::layout::{self, Kind};
use crate::producers::snapshot;
use crate::replicas;
use crate::seal::marks::{Marks, Sealed};
use crate::seal::{Found, Seal};
use crate::segment::walk::{Broken, Walk, valid_batch_after};

/// Side files larger than this are not printed.
const LIMIT: u64 = 1 << 30;

/// Prints a file, a partition's folder or a whole data directory to `out`. What cannot be read is said in its
/// place; only errors of `out` and of `path` itself end it.
pub fn dump<D: Disk>(disk: &D, path: &Path, out: &mut impl Write) -> io::Result<()> {
    match disk.read_dir(path) {
        Ok(mut entries) => {
            entries.sort();
            for entry in entries {
                let below = path.join(&entry.name);
                if entry.is_dir {
                    if layout::parse_folder_name(&entry.name).is_some() {
                        dump(disk, &below, out)?;
                    }
                } else {
                    dump_file(disk, &below, out)?;
                }
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => dump_file(disk, path, out),
        Err(error) => Err(error),
    }
}

fn dump_file<D: Disk>(disk: &D, path: &Path, out: &mut impl Write) -> io::Result<()> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let known = layout::parse_file_name(name);
    let side = [
        layout::PARTITION_METADATA,
        layout::EPOCH_CHECKPOINT,
        layout::META_PROPERTIES,
        layout::REPLICAS,
        // The control side's and the cleaner's, which are text.
        "control.past",
        "compaction-checkpoint",
    ];
    if known.is_none() && !side.contains(&name) {
        return Ok(());
    }
    writeln!(out, "== {}", path.display())?;
    let mut text = Vec::new();
    let outcome = match known {
        Some((base, Kind::Log)) => dump_log(disk, path, base, &mut text),
        Some((base, Kind::Index)) => {
            dump_index::<OffsetEntry, D>(disk, path, base, &mut text, |entry, out| {
                writeln!(out, "offset: {} position: {}", entry.offset, entry.position)
            })
        }
        Some((base, Kind::TimeIndex)) => {
            dump_index::<TimeEntry, D>(disk, path, base, &mut text, |entry, out| {
                writeln!(out, "timestamp: {} offset: {}", entry.timestamp, entry.offset)
            })
        }
        Some((_, Kind::Snapshot)) => dump_snapshot(disk, path, &mut text),
        Some((base, Kind::Seal)) => dump_seal(disk, path, base, &mut text),
        Some((base, Kind::TxnIndex)) => dump_aborted(disk, path, base, &mut text),
        None if name == layout::REPLICAS => dump_replicas(disk, path, &mut text),
        Some((_, Kind::Damage)) | None => read_whole(disk, path, LIMIT).map(|content| {
            // What a terminal might take for a command is none.
            let content = String::from_utf8_lossy(content.trim_ascii_end());
            let plain = content.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c });
            text.extend_from_slice(plain.collect::<String>().as_bytes());
        }),
    };
    out.write_all(&text)?;
    if !text.is_empty() && !text.ends_with(b"\n") {
        writeln!(out)?;
    }
    if let Err(error) = outcome {
        writeln!(out, "UNREADABLE: {error}")?;
    }
    Ok(())
}

fn dump_aborted<D: Disk>(disk: &D, path: &Path, base: Offset, out: &mut impl Write) -> io::Result<()> {
    let content = read_whole(disk, path, LIMIT)?;
    let Some(entries) = txn::decode(base, &content) else {
        return writeln!(out, "NOT entries of a segment that begins at {base}");
    };
    for entry in entries {
        writeln!(
            out,
            "producer: {} offsets: {}..{} last stable offset: {}",
            entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
        )?;
    }
    Ok(())
}

fn dump_log<D: Disk>(disk: &D, path: &Path, base: Offset, out: &mut impl Write) -> io::Result<()> {
    let file = disk.open(path, OpenMode::Read)?;
    let size = file.len()?;
    let mut walk = Walk::new(&file, 0, size, base);
    let mut next = base;
    loop {
        let step = match walk.next_checked() {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(()),
            Err(Broken::Io(error)) => return Err(error),
            Err(Broken::Batch { position, reason }) => {
                writeln!(
                    out,
                    "BROKEN at position {position}, {} bytes from the end: {reason}",
                    size - position
                )?;
                match valid_batch_after(&file, position + 1, size, next)? {
                    Some(offset) => {
                        writeln!(out, "a readable batch of offset {offset} follows: this is damage")?
                    }
                    None => writeln!(out, "nothing readable follows: a torn tail")?,
                }
                return Ok(());
            }
        };
        let header = step.header;
        next = header.next_offset();
        write!(
            out,
            "position: {} size: {} offsets: {}..{} records: {} generation: {} timestamps: {}..{}",
            step.position,
            header.bytes,
            header.base_offset,
            header.last_offset(),
            header.records,
            header.generation.map_or_else(|| "none".to_string(), |generation| generation.to_string()),
            header.base_timestamp,
            header.max_timestamp,
        )?;
        if header.codec_bits() != 0 {
            match header.codec() {
                Some(codec) => write!(out, " codec: {codec:?}")?,
                None => write!(out, " codec: unknown ({})", header.codec_bits())?,
            }
        }
        if header.is_log_append_time() {
            write!(out, " append time")?;
        }
        if header.has_producer() {
            write!(
                out,
                " producer: {} epoch: {} sequences: {}..{}",
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_sequence()
            )?;
        }
        if header.is_transactional() {
            write!(out, " transactional")?;
        }
        if header.is_control() {
            let batch = walk.batch(&step).ok().and_then(|bytes| Marker::of(&header, bytes));
            match batch {
                Some(Marker { end: TransactionEnd::Commit, coordinator_epoch }) => {
                    write!(out, " control: commit by coordinator epoch {coordinator_epoch}")?;
                }
                Some(Marker { end: TransactionEnd::Abort, coordinator_epoch }) => {
                    write!(out, " control: abort by coordinator epoch {coordinator_epoch}")?;
                }
                None => write!(out, " control")?,
            }
        }
        writeln!(out, " crc: {:#010x}", header.crc)?;
    }
}

fn dump_index<E: IndexEntry, D: Disk>(
    disk: &D,
    path: &Path,
    base: Offset,
    out: &mut impl Write,
    print: impl Fn(&E, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    for entry in read_entries::<E, _>(&file, base, 0, len / E::BYTES)? {
        print(&entry, out)?;
    }
    if len % E::BYTES != 0 {
        writeln!(out, "BROKEN: {} bytes too many", len % E::BYTES)?;
    }
    Ok(())
}

fn dump_snapshot<D: Disk>(disk: &D, path: &Path, out: &mut impl Write) -> io::Result<()> {
    let content = read_whole(disk, path, LIMIT)?;
    let entries = snapshot::entries(&content).map_err(io::Error::other)?;
    for entry in entries {
        write!(out, "producer: {} epoch: {}", entry.producer_id, entry.epoch)?;
        if let Some(batch) = entry.batch {
            write!(
                out,
                " last sequence: {} offsets: {}..{}",
                batch.last_sequence,
                batch.last_offset - Offset::from(batch.offset_delta),
                batch.last_offset
            )?;
        }
        write!(out, " timestamp: {} coordinator epoch: {}", entry.timestamp, entry.coordinator_epoch)?;
        if let Some(start) = entry.transaction_start {
            write!(out, " open transaction from: {start}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn dump_seal<D: Disk>(disk: &D, path: &Path, base: Offset, out: &mut impl Write) -> io::Result<()> {
    let content = read_whole(disk, path, LIMIT)?;
    match Seal::decode(&content, base) {
        Found::Seal(seal) => writeln!(
            out,
            "offsets: {}..{} size: {} checksum: {:#010x} {}{}{}{}",
            seal.base,
            seal.next,
            seal.size,
            seal.crc,
            match Sealed::decode(&content, base) {
                Some(sealed) => format!("marks: {}", sealed.marks.as_ref().map_or(0, Marks::len)),
                None => "BROKEN: its marks".to_owned(),
            },
            if seal.gaps { " offsets are missing" } else { "" },
            if seal.open { " of a clean stop" } else { "" },
            if seal.aborted { " aborted transactions may be in it" } else { "" },
        ),
        Found::Missing => writeln!(out, "BROKEN: it is empty"),
        Found::Bad(why) => writeln!(out, "BROKEN: {why}"),
    }
}

fn dump_replicas<D: Disk>(disk: &D, path: &Path, out: &mut impl Write) -> io::Result<()> {
    let (rows, report) = replicas::rows(&read_whole(disk, path, LIMIT)?);
    for (partition, row) in rows {
        write!(
            out,
            "partition: {partition} log id: {} accepted: {} mark: {} of generation: {} log start: {} synced: {}",
            row.log_id, row.accepted, row.mark, row.mark_generation, row.log_start, row.synced
        )?;
        writeln!(
            out,
            "{}{}{}",
            if row.clean { " clean" } else { "" },
            if row.unsynced { " counts unsynced bytes" } else { "" },
            if row.diverged { " diverged" } else { "" }
        )?;
    }
    if report.damaged > 0 {
        writeln!(out, "BROKEN: {} commits are unreadable", report.damaged)?;
    }
    Ok(())
}
