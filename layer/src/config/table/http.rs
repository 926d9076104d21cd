//! The settings for HTTP requests.

use super::Setting;
use crate::config::value;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "METHODS",
        "`POST,PATCH`: the methods that are protected",
        "methods such as POST,PUT",
        |draft, methods| {
            draft.rules.methods = Some(value::methods(methods)?);
            Ok(())
        },
    ),
    Setting::new(
        "STREAMING",
        "`false`; `true` if the function streams over HTTP. The layer's own answers to REST APIs and function URLs \
         are then streams from the start. With `false`, they're streams once the function has sent one",
        "true or false",
        |draft, flag| {
            draft.rules.streams = value::flag(flag)?;
            Ok(())
        },
    ),
];
