use super::*;

#[test]
fn readers_see_whole_batches_while_the_log_is_written_rolled_cut_and_trimmed() {
    use std::sync::atomic::AtomicBool;

    for tail_bytes in [0, 30_000] {
        let disk = MemDisk::new();
        let dir = limited(&disk, Limits { tail_bytes, open_files: 8, ..Limits::default() });
        let mut log = Log::create(&dir, partition(), small(), 0, NOW).unwrap();
        let reader = log.reader();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (reader, done) = (reader.clone(), &done);
                scope.spawn(move || {
                    let mut from = 0;
                    let mut batches = 0;
                    while !done.load(Ordering::Relaxed) {
                        match reader.read(from, 300 * (worker + 1), Offset::MAX, true) {
                            Ok(read) => {
                                let found = ranges(&read);
                                assert!(found.first().is_none_or(|first| first.0 <= from));
                                batches += found.len();
                                from = if found.is_empty() { reader.start() } else { read.next };
                            }
                            Err(ReadError::BelowStart { start }) => from = start,
                            Err(ReadError::BeyondEnd { end }) => from = end,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    assert!(batches > 0);
                });
            }
            for round in 0..3_000_i64 {
                let number = u32::try_from(round + 1).unwrap();
                log.append(&batch(round % 7 + 1, 60, round), generation(number), NOW).unwrap();
                if round % 50 == 0 {
                    flush(&mut log);
                    let to = log.end() - 20;
                    log.truncate(to.max(log.start()), NOW).unwrap();
                }
                if round % 90 == 0 {
                    log.set_config(LogConfig { retention_bytes: Some(6_000), ..small() });
                    let mut retired = log.retain(log.end(), NOW).unwrap();
                    retired.hide().unwrap();
                    retired.remove().unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
