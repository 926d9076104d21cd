//! The file that `why --describe` reads: how a function derives its records' ids.

use lambda_idempotency::{Error, lambda::Description};
use serde::Deserialize;

/// The content of a file for `--describe`: the text that `describe()` returns, or the line that begins the log of the Lambda layer.
#[derive(Deserialize)]
pub(super) struct Described {
    pub(super) wrappers: Vec<Description>,
    /// The form of a caller's text, with `NAME` in the caller's place, if a setting of the layer names the callers.
    resolved_caller: Option<String>,
    #[serde(skip, default = "is_layers")]
    pub(super) is_layers: bool,
}

fn is_layers() -> bool {
    true
}

impl Described {
    pub(super) fn of(wrappers: Vec<Description>) -> Self {
        Self { wrappers, resolved_caller: None, is_layers: false }
    }

    /// Reads one description, a list of them, or the layer's line.
    pub(super) fn read(text: &[u8]) -> serde_json::Result<Self> {
        if let Ok(line) = serde_json::from_slice(text) {
            return Ok(line);
        }
        let one = serde_json::from_slice::<Description>(text).map(|one| vec![one]);
        one.or_else(|_| serde_json::from_slice(text)).map(Self::of)
    }

    /// Suggests the option that solves the error, or another way to the record.
    pub(super) fn hint(&self, error: &Error) -> String {
        if !self.is_layers || !error.to_string().contains("closure returns") {
            return hint(error).to_owned();
        }
        let option = match &self.resolved_caller {
            Some(text) => format!("add --resolved-caller '{text}', with the caller in place of NAME"),
            None => "it's a hash of the credential, which this command doesn't compute".to_owned(),
        };
        format!(
            ". A setting of the layer names the caller, IDEMPOTENCY_CALLERS: {option}. Or begin with the request id: the \
             layer's log has the record's id if it replayed or refused the request, and `idempotency why --request-id \
             ID` finds the record if the function ran"
        )
    }
}

/// Puts the descriptions first whose wrapper takes events like this one. The others stay, since a function may use
/// another wrapper than the event suggests.
pub(super) fn fitting_first(mut described: Vec<Description>, event: &[u8]) -> Vec<Description> {
    let via = Description::detect("", event).via;
    described.sort_by_key(|description| description.via != via);
    described
}

/// Suggests the option that solves the error.
fn hint(error: &Error) -> &'static str {
    let text = error.to_string();
    [
        (
            "key itself",
            ": add --key-field FIELD, or --step NAME=FIELD for the record of a step in the handler, or give the key and \
             its scope instead of --event",
        ),
        ("closure returns", ": add --resolved-caller TEXT"),
        ("caller-unknown", "; if the function's own code names the caller, add --resolved-caller TEXT"),
        ("request id", ": add --request-id ID"),
        ("needs its name", ": add --operation NAME"),
    ]
    .into_iter()
    .find_map(|(about, hint)| text.contains(about).then_some(hint))
    .unwrap_or_default()
}
