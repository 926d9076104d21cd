//! The handlers, each in its own module. `README.md` lists them.

pub mod world;

pub mod wrong {
    pub mod amount_in_the_key;
    pub mod amount_not_compared;
    pub mod batch_without_failures;
    pub mod charge_before_the_claim;
    pub mod error_answered_with_200;
    pub mod fresh_gateway_key;
    pub mod gateway_without_key;
    pub mod key_from_a_proxys_header;
    pub mod loop_with_one_key;
    pub mod mail_after_the_outcome;
    pub mod mail_in_a_drop;
    pub mod mail_on_replay;
    pub mod message_id_as_key;
    pub mod optional_field_as_key;
    pub mod outage_recorded_as_final;
    pub mod random_dedup_id;
    pub mod random_key;
    pub mod receipt_from_the_clock;
    pub mod refund_in_the_cleanup;
    pub mod retries_in_the_background;
    pub mod second_effect_repeats_the_first;
    pub mod seen_before_it_is_done;
    pub mod spawned_charge;
    pub mod staged_and_direct;
    pub mod static_keeps_the_first;
    pub mod step_number_from_a_counter;
    pub mod tenants_share_a_key;
    pub mod two_steps_one_name;
    pub mod whole_event_as_key;
    pub mod work_outlives_its_lease;
}

pub mod right {
    pub mod at_most_once;
    pub mod derived_key_over_http;
    pub mod fifo_forwarder;
    pub mod final_and_passing_failures;
    pub mod key_from_the_body;
    pub mod mail_with_dedup_id;
    pub mod pure_quote;
    pub mod settled_by_hand;
    pub mod staged_payment;
    pub mod steps_with_their_own_names;
}
