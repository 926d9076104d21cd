#![no_main]
#![allow(missing_docs, reason = "`src/layer.rs` documents this target")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lambda_idempotency_fuzz::layer::check(data));
