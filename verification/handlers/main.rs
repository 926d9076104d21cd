//! Runs 40 handlers in the testing kit. The kit must report most of the wrong handlers, and none of the right ones.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test panics to fail, and prints its table")]
#![allow(unreachable_pub, missing_docs, reason = "the handlers are written as a user would write them")]
#![allow(clippy::disallowed_methods, reason = "some handlers sleep, as a user's handler would")]

mod drive;
mod reconcilers;
mod right;
mod world;
mod wrong;

use drive::{Handler, handler};
use lambda_idempotency_testing::Mistake;

/// The wrong handlers, which aren't safe to retry.
fn wrong() -> Vec<Handler> {
    vec![
        handler!(wrong::w01_random_key, http),
        handler!(wrong::w02_whole_event_as_key, event),
        handler!(wrong::w03_charge_before_the_claim, event),
        handler!(wrong::w04_mail_after_the_outcome, event),
        handler!(wrong::w05_spawned_charge, event),
        handler!(wrong::w06_error_answered_with_200, http),
        handler!(wrong::w07_outage_recorded_as_final, sqs),
        handler!(wrong::w08_gateway_without_key, http),
        handler!(wrong::w09_fresh_gateway_key, event),
        handler!(wrong::w10_mail_in_a_drop, event),
        handler!(wrong::w11_tenants_share_a_key, event),
        handler!(wrong::w12_amount_not_compared, event),
        handler!(wrong::w13_amount_in_the_key, event),
        handler!(wrong::w14_optional_field_as_key, event),
        handler!(wrong::w15_two_steps_one_name, event),
        handler!(wrong::w16_step_number_from_a_counter, event),
        handler!(wrong::w17_loop_with_one_key, event),
        handler!(wrong::w18_message_id_as_key, sqs),
        handler!(wrong::w19_batch_without_failures, event),
        handler!(wrong::w20_receipt_from_the_clock, event),
        handler!(wrong::w21_mail_on_replay, http),
        handler!(wrong::w22_work_outlives_its_lease, event),
        handler!(wrong::w23_refund_in_the_cleanup, event),
        handler!(wrong::w24_random_dedup_id, sqs),
        handler!(wrong::w25_seen_before_it_is_done, sqs),
        handler!(wrong::w26_static_keeps_the_first, event),
        handler!(wrong::w27_staged_and_direct, event),
        handler!(wrong::w28_second_effect_repeats_the_first, sqs),
        handler!(wrong::w29_retries_in_the_background, event),
        handler!(wrong::w30_key_from_a_proxys_header, http),
    ]
}

/// The right handlers, which are safe to retry.
fn right() -> Vec<Handler> {
    vec![
        handler!(right::r01_derived_key_over_http, http),
        handler!(right::r02_staged_payment, event),
        handler!(right::r03_at_most_once, event),
        handler!(right::r04_steps_with_their_own_names, event),
        handler!(right::r05_fifo_forwarder, sqs),
        handler!(right::r06_key_from_the_body, http),
        handler!(right::r07_mail_with_dedup_id, sqs),
        handler!(right::r08_pure_quote, event),
        handler!(right::r09_final_and_passing_failures, sqs),
        handler!(right::r10_settled_by_hand, event),
    ]
}

#[test]
fn wrong_handlers_are_caught() {
    let rows: Vec<_> = wrong().into_iter().map(drive::tried).collect();
    println!("{}", drive::table(&rows));
    let caught = rows.iter().filter(|row| row.is_caught()).count();
    println!("{caught} of {} caught", rows.len());
    assert_eq!((caught, rows.len()), (30, 30));
}

#[test]
fn lost_updates_are_caught() {
    let rows: Vec<_> = wrong::lost_updates::all().into_iter().map(drive::tried).collect();
    println!("{}", drive::table(&rows));
    for row in &rows {
        let mistakes: Vec<_> = row.report.findings().iter().map(|finding| finding.mistake).collect();
        assert_eq!(mistakes, [Mistake::UpdateLost], "{}: {}", row.name, row.report);
    }
}

#[test]
fn wrong_reconcilers_are_caught() {
    let (handlers, advice): (Vec<_>, Vec<_>) = reconcilers::wrong().into_iter().unzip();
    let rows: Vec<_> = handlers.into_iter().map(drive::tried).collect();
    println!("{}", drive::table(&rows));
    for (row, advice) in rows.iter().zip(advice) {
        let is_given = row.report.findings().iter().any(|finding| finding.advice.contains(advice));
        assert!(is_given, "{}: {}", row.name, row.report);
    }
}

#[test]
fn right_handlers_raise_no_alarm() {
    let all = right()
        .into_iter()
        .chain(right::by_source::all())
        .chain(right::by_state::all())
        .chain([reconcilers::right()]);
    let rows: Vec<_> = all.map(drive::tried).collect();
    println!("{}", drive::table(&rows));
    let alarms: Vec<_> = rows
        .iter()
        .filter(|row| row.is_caught())
        .map(|row| format!("{}: {}", row.name, row.report))
        .collect();
    assert_eq!(rows.len(), 44);
    assert!(alarms.is_empty(), "{}", alarms.join("\n\n"));
}
