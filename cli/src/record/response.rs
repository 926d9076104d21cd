//! The response that an operator records, in the form that the operation's wrapper replays. The command refuses a
//! response that a replay couldn't read, since every duplicate would fail until the record expires.

use std::{fs, path::PathBuf};

use clap::Args;
use http::{Response, header::CONTENT_TYPE};
use lambda_idempotency::{
    Resolution, StoredKey,
    lambda::http::{recorded, replayed},
};

use crate::problem::{Context as _, Problem, Result};

/// The response to record.
#[derive(Debug, Args)]
#[command(next_help_heading = "The response")]
pub(super) struct ResponseArguments {
    /// The file with the response: the body of an HTTP response, or the result of an event or a step as JSON.
    #[arg(long, value_name = "FILE", required_unless_present = "no_response")]
    response: Option<PathBuf>,

    /// HTTP: the status, such as 201.
    #[arg(long, value_name = "CODE", requires = "response")]
    status: Option<u16>,

    /// HTTP: a header. Can be repeated. By default, a JSON body gets `content-type: application/json`.
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "status")]
    headers: Vec<String>,

    /// Record FILE unchanged, byte for byte: for code that calls `begin`, or if FILE has the recorded response as
    /// `inspect --reveal` shows it.
    #[arg(long, requires = "response", conflicts_with = "status")]
    raw: bool,

    /// Record the operation as done, without a response: duplicates get NotRetained (HTTP 409), and nothing
    /// runs.
    #[arg(long, conflicts_with = "response")]
    no_response: bool,
}

impl ResponseArguments {
    /// The resolution to record for `key`.
    ///
    /// # Errors
    ///
    /// If the file can't be read, or a replay couldn't read its content.
    pub(super) fn resolution(&self, key: &StoredKey) -> Result<Resolution> {
        let Some(path) = &self.response else { return Ok(Resolution::CompleteWithoutResponse) };
        let file = fs::read(path).context(format!("couldn't read the response file {}", path.display()))?;
        let bytes = match via(key) {
            "http" | "http-body" => self.http(file)?,
            _ if self.status.is_some() => {
                return Err(Problem::new("--status is only for HTTP operations: leave it out"));
            }
            "event" => json(file)?,
            _ if self.raw => file,
            _ => json(file).map_err(|problem| {
                Problem::new(format!(
                    "{problem}; if the code calls `begin` and records its own bytes, add --raw"
                ))
            })?,
        };
        Ok(Resolution::Complete(bytes.into()))
    }

    fn http(&self, body: Vec<u8>) -> Result<Vec<u8>> {
        if self.raw {
            return match replayed(&body) {
                Ok(_) => Ok(body),
                Err(_) => Err(Problem::new(
                    "the file isn't a recorded HTTP response in the form that `inspect --reveal` shows; if it's \
                     only the body, use --status instead of --raw",
                )),
            };
        }
        let Some(status) = self.status else {
            return Err(Problem::new("this is an HTTP operation: add its response's --status, such as 201"));
        };
        let mut response = Response::builder().status(status);
        for header in &self.headers {
            let (name, value) = header.split_once(':').ok_or_else(|| {
                Problem::new(format!("--header {header:?} has no colon: write it as 'name: value'"))
            })?;
            response = response.header(name.trim(), value.trim());
        }
        let names_its_type = response.headers_ref().is_some_and(|headers| headers.contains_key(CONTENT_TYPE));
        if !names_its_type && is_json(&body) {
            response = response.header(CONTENT_TYPE, "application/json");
        }
        let response = response.body(body).context("--status or --header isn't valid in HTTP")?;
        if !(200..=599).contains(&status) {
            return Err(Problem::new(format!(
                "--status {status} isn't a final status: use one from 200 to 599"
            )));
        }
        // Pass text as a string. If it were passed as bytes, the layer would replay it as a binary body, in base64.
        let recorded = match String::from_utf8(response.body().clone()) {
            Ok(text) => recorded(response.map(|_| text)),
            Err(_) => recorded(response),
        };
        Ok(recorded.map_err(|error| Problem::of(&error))?.to_vec())
    }

    /// Returns these arguments as words of a command line.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(path) = &self.response {
            words.extend(["--response".to_owned(), path.display().to_string()]);
        }
        if let Some(status) = self.status {
            words.extend(["--status".to_owned(), status.to_string()]);
        }
        words.extend(self.headers.iter().flat_map(|header| ["--header".to_owned(), header.clone()]));
        for (is_given, option) in [(self.raw, "--raw"), (self.no_response, "--no-response")] {
            words.extend(is_given.then(|| option.to_owned()));
        }
        words
    }
}

/// Returns the wrapper's name in the key: `http` for `payments/http:refund#…`.
pub(super) fn via(key: &StoredKey) -> &str {
    let operation = key.as_str().split_once('/').map_or("", |(_, rest)| rest);
    let operation = operation.split_once('#').map_or(operation, |(operation, _)| operation);
    operation.split_once(':').map_or(operation, |(via, _)| via)
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() && std::str::from_utf8(bytes).is_ok()
}

fn json(bytes: Vec<u8>) -> Result<Vec<u8>> {
    if is_json(&bytes) {
        Ok(bytes)
    } else {
        Err(Problem::new("the response isn't JSON, so a replay couldn't read it"))
    }
}
