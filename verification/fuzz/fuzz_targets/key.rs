#![no_main]
#![allow(missing_docs, reason = "see the library's module of this name")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lambda_idempotency_fuzz::key::check(data));
