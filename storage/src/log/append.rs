//! Append: one vectored write of the patched head and the bytes as received.

use std::io::{self, IoSlice};

use bytes::Bytes;
use felix_protocol::batch::{BatchHeader, CRC_FROM, CheckedBatch, PATCH_BYTES, patched_head};
use felix_protocol::ids::{Generation, Offset};
use felix_protocol::time::WallTime;

use super::aborted::aborted;
use super::{Appended, Log};
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Doing, StorageError};
use crate::layout::Kind;

/// Offsets end here, far enough below the last `i64` that every sum of offset and delta fits.
const LAST_OFFSET: Offset = Offset::MAX - i32::MAX as i64 - 1;

impl<D: Disk> Log<D> {
    /// Appends a producer's batch at the end, as of `generation`. Does not look at its sequences:
    /// [`crate::Producers::check`] does, before.
    pub fn append(
        &mut self,
        batch: &CheckedBatch,
        generation: Generation,
        now: WallTime,
    ) -> Result<Appended, StorageError> {
        self.append_if(batch, generation, now, batch.bytes().len(), || true)
    }

    /// [`Log::append`] with a last question asked just before the bytes are written ("do I still hold the
    /// lease?"), and with the size of the buffer that the batch is a slice of, so that the memory tail does
    /// not pin a large buffer for a small batch.
    pub fn append_if(
        &mut self,
        batch: &CheckedBatch,
        generation: Generation,
        now: WallTime,
        frame_bytes: usize,
        admit: impl FnOnce() -> bool,
    ) -> Result<Appended, StorageError> {
        let mut header = *batch.header();
        header.base_offset = self.end;
        header.generation = Some(generation);
        self.write(&header, generation, batch.bytes(), now, frame_bytes, admit)
    }

    /// Appends a batch that carries its offsets and generation already (a follower's append). It may leave
    /// out offsets, as compacted logs do, but never go back.
    pub fn append_stored(&mut self, batch: &CheckedBatch, now: WallTime) -> Result<Appended, StorageError> {
        let header = *batch.header();
        if header.base_offset < self.end {
            return Err(StorageError::Overlap { base: header.base_offset, end: self.end });
        }
        let newest = self.generations.latest().map_or(Generation::ZERO, |(newest, _)| newest);
        let generation = header.generation.unwrap_or(newest);
        self.write(&header, generation, batch.bytes(), now, batch.bytes().len(), || true)
    }

    /// `header` is the batch's as it will stand in the log.
    fn write(
        &mut self,
        header: &BatchHeader,
        generation: Generation,
        batch: &Bytes,
        now: WallTime,
        frame_bytes: usize,
        admit: impl FnOnce() -> bool,
    ) -> Result<Appended, StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        if header.base_offset > LAST_OFFSET {
            return Err(StorageError::OffsetsExhausted(self.end));
        }
        let begins = match self.generations.latest() {
            Some((newest, _)) if newest > generation => {
                return Err(StorageError::StaleGeneration { asked: generation, newest });
            }
            Some((newest, _)) => newest < generation,
            None => true,
        };
        self.cut_ragged()?;
        let rolled = self.roll_for(header, now)?;
        let head = patched_head(batch, header.base_offset, generation);
        let file = self.active.file().doing("open", &self.active.path(Kind::Log))?;
        if !admit() {
            return Err(StorageError::NotAdmitted);
        }
        let outcome = write_pieces(&*file, &head, &batch[PATCH_BYTES..], self.position);
        if let Err((written, error)) = outcome {
            // Part of the batch may be there; nobody may ever read it. A full disk that took nothing at all
            // left nothing behind.
            self.ragged = written > 0 || !disk::is_full(&error);
            let _ = self.cut_ragged();
            return Err(StorageError::io("write", &self.active.path(Kind::Log), error));
        }
        self.mark_dirty(file);
        self.add_to_checksum(header, &head, batch);
        if self.position == 0 {
            self.first_timestamp = Some(header.max_timestamp);
        }
        self.active.index(header, self.position);
        let ended = self.producers.record(header, batch, now);
        if let Some(first) = ended.and_then(|ended| ended.first_offset) {
            self.decided.note(header.last_offset(), first);
        }
        if let Some(entry) = aborted(&self.producers, ended, header.last_offset()) {
            self.active.add_aborted(entry);
        }
        if begins {
            self.generations.begin(generation, header.base_offset);
            self.pending.map_changed = true;
            self.publish_map();
        }
        self.position += header.bytes as u64;
        self.end = header.next_offset();
        let shared = &self.shared;
        let range = (header.base_offset, self.end);
        shared.tail.push(shared.home.dir.tail(), range, &head, batch, frame_bytes);
        // Readers see the size before the end.
        self.active.publish(self.position);
        shared.bytes.fetch_add(header.bytes as u64, std::sync::atomic::Ordering::Relaxed);
        shared.end.store(self.end, std::sync::atomic::Ordering::Release);
        Ok(Appended {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            end: self.end,
            bytes: header.bytes,
            rolled,
        })
    }

    /// Takes a batch that was written into the checksum of the active segment.
    fn add_to_checksum(&mut self, header: &BatchHeader, head: &[u8; PATCH_BYTES], batch: &[u8]) {
        self.touched = true;
        let due = if self.position == 0 { self.active.base() } else { self.end };
        if let Some(running) = &mut self.running {
            let mut first = [0; CRC_FROM];
            first[..PATCH_BYTES].copy_from_slice(head);
            first[PATCH_BYTES..].copy_from_slice(&batch[PATCH_BYTES..CRC_FROM]);
            running.add(header, &first, due);
        }
    }

    /// Cuts what a failed write left behind the end, durably: were the cut lost in a crash after a roll, a
    /// torn batch would stand in the middle of the log.
    pub(super) fn cut_ragged(&mut self) -> Result<(), StorageError> {
        if !self.ragged {
            return Ok(());
        }
        let path = self.active.path(Kind::Log);
        let file = self.active.file().doing("open", &path)?;
        file.set_len(self.position).doing("cut", &path)?;
        self.poisoned = true;
        file.sync_data().doing("flush", &path)?;
        self.poisoned = false;
        self.ragged = false;
        Ok(())
    }
}

/// Both pieces in one system call; the kernel may stop early, and then the rest follows. An error comes with
/// the number of bytes that were written before.
fn write_pieces<F: DiskFile>(
    file: &F,
    head: &[u8],
    body: &[u8],
    position: u64,
) -> Result<(), (usize, io::Error)> {
    let whole = head.len() + body.len();
    let mut done = 0;
    while done < whole {
        let at = position + done as u64;
        let outcome = if done < head.len() {
            file.write_vectored_at(&[IoSlice::new(&head[done..]), IoSlice::new(body)], at)
        } else {
            file.write_vectored_at(&[IoSlice::new(&body[done - head.len()..])], at)
        };
        match outcome {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}
