//! The time limits.

use super::Setting;
use crate::config::value;

pub(super) const SETTINGS: &[Setting] = &[Setting::new(
    "LEASE",
    "until 2 s after the deadline; or a short lease that's extended while the function runs, such as `30s`",
    value::TIME,
    |draft, time| {
        draft.rules.settings.lease_extension = Some(value::duration(time)?);
        Ok(())
    },
)
.library("lease_extension")];
