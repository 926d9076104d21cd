//! The settings that say whose a key is.

use super::Setting;
use crate::config::{Callers, value::Wrong};

pub(super) const SETTINGS: &[Setting] = &[Setting::new(
    "CALLERS",
    "`verified`, `required` (every request without a verified caller is refused), `shared` ([HTTP](#http))",
    "verified, required or shared",
    |draft, callers| {
        draft.rules.callers = match callers {
            "verified" => Callers::Verified,
            "required" => Callers::Required,
            "shared" => Callers::Shared,
            _ => return Err(Wrong::Value(callers.into())),
        };
        Ok(())
    },
)];
