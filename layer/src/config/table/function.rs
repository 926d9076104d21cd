//! The settings of the layer's program, and of its place between Lambda and the function.

use super::Setting;
use crate::config::value::{self, Wrong};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "CLAIM_FIELD",
        "none; a field's name, or `context:NAME` (not for batches): [the claim's facts](#the-claims-facts)",
        "a field's name, or context:NAME",
        |draft, field| {
            draft.rules.claim_field = Some(value::claim_field(field)?);
            Ok(())
        },
    ),
    Setting::new(
        "METRICS",
        "`cloudwatch` (with JSON logs, an `ApplicationLogLevel` above `INFO` may drop the metrics), `none`",
        "cloudwatch or none",
        |draft, metrics| {
            draft.has_metrics = match metrics {
                "cloudwatch" => true,
                "none" => false,
                _ => return Err(Wrong::Value(metrics.into())),
            };
            Ok(())
        },
    ),
    Setting::new(
        "CONFIG",
        "none; the path of a JSON file in the function's package with settings",
        "a path",
        |_, _| Ok(()),
    )
    .variable_for("the layer"),
    Setting::new("PORT", "`9415`: the layer's port", "a port's number", |draft, port| {
        let number = port.parse().ok().filter(|number| *number != 0);
        draft.port = number.ok_or_else(|| Wrong::Value(port.into()))?;
        Ok(())
    })
    .variable_for("the wrapper script"),
    Setting::new(
        "UPSTREAM",
        "Lambda's own Runtime API; or the address of [another proxy](#other-wrappers-and-proxies), from which the \
         layer gets the events",
        "a host and a port, such as 127.0.0.1:9009",
        |draft, address| {
            draft.upstream = Some(value::upstream(address)?);
            Ok(())
        },
    ),
    Setting::new(
        "WRAPPER",
        "none; [another wrapper script](#other-wrappers-and-proxies), which runs behind the layer's own",
        "a path",
        |_, _| Ok(()),
    )
    .variable_for("the wrapper script"),
    Setting::new(
        "EXTENSION",
        "the program beside the wrapper script; or the path of the layer's program, where the wrapper script starts \
         it",
        "a path",
        |_, _| Ok(()),
    )
    .variable_for("the wrapper script"),
];
