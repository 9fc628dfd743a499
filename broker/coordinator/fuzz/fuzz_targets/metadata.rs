#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| felix_coordinator_fuzz::metadata(bytes));
