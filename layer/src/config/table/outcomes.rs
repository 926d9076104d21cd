//! The settings of an operation's outcome: what's recorded, and for how long.

use super::Setting;
use crate::config::value::{self, Wrong};

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
        "RECORD_WHEN",
        "the [usual statuses](../src/guide/idempotency_specification.md); or statuses that are recorded too, and with \
         `!` statuses that aren't: `404,!422,5xx`. The last entry that fits counts. For HTTP",
        "statuses such as 404, classes such as 5xx, and !422 for a status that isn't recorded",
        |draft, statuses| {
            for entry in value::list(statuses)? {
                let (statuses, is_recorded) = value::with_sign(&entry);
                draft.rules.record_when.push((value::statuses(statuses)?, is_recorded));
            }
            Ok(())
        },
    ),
    Setting::new(
        "REPLAY_HEADERS",
        "[the usual headers](../src/guide/idempotency_specification.md); or headers that replays contain too, and \
         with `!` headers that they don't: `x-request-id,!server`. With `set-cookie`, whoever gets a replay gets the \
         session. For HTTP",
        "names of headers, and !NAME for a header that replays don't contain; CORS headers can't be named",
        |draft, names| {
            for entry in value::list(names)? {
                let (name, is_replayed) = value::with_sign(&entry);
                let name = value::header(name)?;
                if name.as_str().starts_with("access-control-") {
                    return Err(Wrong::Value(entry));
                }
                draft.on_http(move |layer| Ok(layer.replay_header(name.clone(), is_replayed)))?;
            }
            Ok(())
        },
    ),
    Setting::new(
        "LOCAL_CACHE",
        "`0` bytes; or how much of its memory the layer uses to answer duplicates without a request, such as \
         `4194304`",
        value::BYTES,
        |draft, bytes| {
            draft.rules.settings.local_cache = value::number(bytes)?;
            Ok(())
        },
    )
    .library("local_cache"),
    Setting::new(
        "LOCAL_CACHE_RECORDS",
        "as many as fit; or how many outcomes the local cache keeps at most",
        "a number",
        |draft, records| {
            draft.rules.settings.local_cache_records = Some(value::number(records)?);
            Ok(())
        },
    )
    .library("local_cache_records"),
    Setting::new(
        "CIPHER",
        "none: responses are stored in plaintext, which only the table's own encryption protects; or `kms:KEY`, with \
         the id, ARN or `alias/NAME` of an AWS KMS key: [responses are encrypted](#encryption) before they're stored. \
         Needs a build with `--features kms`",
        "kms: and a key's id, ARN or alias, such as kms:alias/payments",
        |draft, cipher| {
            let key = cipher.strip_prefix("kms:").filter(|key| !key.is_empty());
            let key = key.ok_or_else(|| Wrong::Value(cipher.into()))?;
            if cfg!(not(feature = "kms")) {
                let problem = "this build of the layer can't encrypt; build it with `layer/package --features kms`";
                return Err(Wrong::Because(problem.into()));
            }
            draft.rules.kms_key = Some(key.to_owned());
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
    Setting::new(
        "ON_NOT_RETAINED",
        "`refuse`; or the JSON that a duplicate gets if the operation has ended, successfully or not, and its answer \
         wasn't retained: `{\"ended\":true}`, over HTTP with status 200. For answers that no caller needs, with \
         `IDEMPOTENCY_MAX_RESPONSE=0`",
        "refuse, or JSON such as {\"ended\":true}",
        |draft, answer| {
            if answer != "refuse" {
                let answer = serde_json::from_str(answer).map_err(|_| Wrong::Value(answer.into()))?;
                draft.rules.not_retained = Some(answer);
            }
            Ok(())
        },
    ),
];
