//! The settings of an operation's outcome: what's recorded, and for how long.

use super::Setting;
use crate::config::value;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "RETENTION",
        "`24h`: how long an outcome is replayed. For a queue, set the sum of the retentions of the queue and its \
         dead-letter queue, such as `18d`, and take the key from the body, since a redrive gives messages new ids",
        value::TIME,
        |draft, time| {
            draft.rules.settings.retention = value::duration(time)?;
            Ok(())
        },
    )
    .library("retention"),
    Setting::new(
        "ON_ERROR",
        "`release`, `record`, `record:TypeA,TypeB` (other errors release the key), `release:TypeA,TypeB` (other \
         errors are recorded). A type is the error's `errorType`. Over HTTP, a recorded error becomes 500 \
         (`operation-failed`) for the first caller and for duplicates",
        "release, record, record:TYPE,… or release:TYPE,…",
        |draft, policy| {
            draft.rules.on_error = value::on_error(policy)?;
            Ok(())
        },
    ),
    Setting::new(
        "MAX_RESPONSE",
        "`8388608` bytes. A larger answer passes through, and is recorded as not retained. For HTTP, the limit \
         applies to the response's head and decoded body together, and the response's JSON or base64 form must also \
         fit into the front end's limit: Lambda's 6 MB, or a load balancer's 1 MiB",
        value::BYTES,
        |draft, bytes| {
            draft.rules.max_response = value::number(bytes)?;
            Ok(())
        },
    ),
];
