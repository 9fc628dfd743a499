#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| felix_protocol_fuzz::peer(bytes));
