//! The right handlers. `README.md` lists them.

pub(crate) mod by_source;
pub(crate) mod by_state;
pub(crate) mod r01_derived_key_over_http;
pub(crate) mod r02_staged_payment;
pub(crate) mod r03_at_most_once;
pub(crate) mod r04_steps_with_their_own_names;
pub(crate) mod r05_fifo_forwarder;
pub(crate) mod r06_key_from_the_body;
pub(crate) mod r07_mail_with_dedup_id;
pub(crate) mod r08_pure_quote;
pub(crate) mod r09_final_and_passing_failures;
pub(crate) mod r10_settled_by_hand;
