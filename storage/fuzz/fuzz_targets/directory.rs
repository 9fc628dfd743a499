#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| felix_storage_fuzz::directory(bytes));
