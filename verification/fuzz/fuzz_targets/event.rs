#![no_main]
#![allow(missing_docs, reason = "`src/event.rs` documents this target")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lambda_idempotency_fuzz::event::check(data));
