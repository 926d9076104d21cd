//! The settings that decide when an event runs, and when it's refused.

use std::time::Duration;

use lambda_idempotency::settings::Execution;

use super::Setting;
use crate::config::value::{self, Wrong};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "MODE",
        "`enforce`; `shadow` (the function always runs, and gets batches whole; the log and the metrics say what \
         enforcing would have done); `off` (every event passes, and counts as not enforced). If \
         `IDEMPOTENCY_REQUIRED=1` is set, `shadow` and `off` fail the init. `off!` is `off` in any case: it's the [kill \
         switch](#switch-it-off)",
        "enforce, shadow, off or off!",
        |draft, mode| {
            draft.is_off_anyway = mode == "off!";
            let mode = if draft.is_off_anyway { "off" } else { mode };
            draft.rules.settings.mode = mode.parse().map_err(|_| Wrong::Value(mode.into()))?;
            Ok(())
        },
    ),
    Setting::new(
        "REQUIRED",
        "`1` in the mode `enforce`: the function gets no event until its runtime has sent the layer a request. If the \
         runtime isn't behind the layer, the init times out. With `0`, such a function runs unprotected; the layer \
         logs an error and counts each event as not enforced. If you set `1` yourself, the init also fails in another \
         mode than `enforce`",
        "1 or 0",
        |draft, flag| {
            draft.is_required = match flag {
                "1" => Some(true),
                "0" => Some(false),
                _ => return Err(Wrong::Value(flag.into())),
            };
            Ok(())
        },
    )
    .variable_for("the library"),
    Setting::new(
        "EXECUTION",
        "`at-least-once`, `at-most-once`",
        "at-least-once or at-most-once",
        |draft, execution| {
            draft.rules.settings.execution = match execution {
                "at-least-once" => Execution::AtLeastOnce,
                "at-most-once" => Execution::AtMostOnce,
                _ => return Err(Wrong::Value(execution.into())),
            };
            Ok(())
        },
    ),
    Setting::new(
        "ON_IN_PROGRESS",
        "`refuse`; or `wait:20s`: a duplicate waits up to 20 s while another delivery runs the operation",
        "refuse, or wait: and a time with its unit, such as wait:20s",
        |draft, policy| {
            draft.rules.settings.wait_in_progress = match policy.split_once(':') {
                None if policy == "refuse" => Duration::ZERO,
                Some(("wait", time)) => value::duration(time)?,
                _ => return Err(Wrong::Value(policy.into())),
            };
            Ok(())
        },
    ),
    Setting::new(
        "ON_MISSING_KEY",
        "`refuse`, `pass`. HTTP with the key `header`: `pass` by default",
        PASSES,
        |draft, policy| {
            draft.rules.passes_unkeyed = Some(value::passes(policy)?);
            Ok(())
        },
    ),
    Setting::new(
        "ON_STORE_FAILURE",
        "`refuse`, `pass` (the event runs unprotected)",
        PASSES,
        |draft, policy| {
            draft.rules.settings.fail_open = value::passes(policy)?;
            Ok(())
        },
    ),
    Setting::new(
        "ON_INTERNAL_ERROR",
        "`refuse`, `pass` (the event runs unprotected, but only if the layer hasn't begun to claim it)",
        PASSES,
        |draft, policy| {
            draft.rules.passes_internal_errors = value::passes(policy)?;
            Ok(())
        },
    ),
];

const PASSES: &str = "refuse or pass";
