//! The time limits.

use super::Setting;
use crate::config::value;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "LEASE",
        "until 2 s after the deadline; or a short lease that's extended while the function runs, such as `30s`",
        value::TIME,
        |draft, time| {
            draft.rules.settings.lease_extension = Some(value::duration(time)?);
            Ok(())
        },
    )
    .library("lease_extension"),
    Setting::new(
        "LEASE_GRACE",
        "`2s`: how long the lease lasts after the deadline",
        value::TIME,
        |draft, time| {
            draft.rules.settings.lease_grace = value::duration(time)?;
            Ok(())
        },
    )
    .library("lease_grace"),
    Setting::new(
        "LEASE_FALLBACK",
        "`60s`: the lease if the event has no readable deadline",
        value::TIME,
        |draft, time| {
            draft.rules.settings.lease_fallback = value::duration(time)?;
            Ok(())
        },
    )
    .library("lease_fallback"),
    Setting::new(
        "SKEW_MARGIN",
        "`2s`: how far the clocks of two sandboxes may differ. Another delivery takes a key over only this long after \
         its lease",
        value::TIME,
        |draft, time| {
            draft.rules.settings.skew_margin = value::duration(time)?;
            Ok(())
        },
    )
    .library("skew_margin"),
    Setting::new(
        "ANSWER_RESERVE",
        "`250ms`: how long before the deadline the layer stops waiting for the store. In its last fifth, Lambda gets \
         the function's answer even if it isn't recorded",
        value::TIME,
        |draft, time| {
            draft.rules.settings.answer_reserve = value::duration(time)?;
            Ok(())
        },
    )
    .library("answer_reserve"),
    Setting::new(
        "SETTLE_WITHIN",
        "`30s`: how long the layer retries to record an outcome while the store fails, at most until \
         `IDEMPOTENCY_ANSWER_RESERVE`",
        value::TIME,
        |draft, time| {
            draft.rules.settings.settle_within = value::duration(time)?;
            Ok(())
        },
    )
    .library("settle_within"),
    Setting::new(
        "ANSWER_WITHIN",
        "29 s behind API Gateway, and otherwise until the deadline; or how long the front end waits for a response, \
         for example because its quota was raised. For HTTP",
        value::TIME,
        |draft, time| {
            let time = value::duration(time)?;
            draft.on_http(move |layer| Ok(layer.answer_within(time)))
        },
    ),
];
