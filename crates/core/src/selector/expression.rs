//! JMESPath, with numbers as they were sent.
//!
//! The interpreter holds a number that isn't a 64-bit integer as a float. But the interpreter passes on the pointer to
//! a value, and makes a new value only when it calculates. So this module keeps the text of each number that's held as
//! a float, by the address of the number's value, and writes results with that text.

mod functions;
mod numbers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jmespath::{Context, Rcvar, Variable, ast::Ast};

use self::numbers::{NUMBER, Unread, Values};
use super::not_json;
use crate::error::{Error, ErrorKind};

/// How many bytes a search may read and decode: more than Lambda's largest event (6 MB) holds.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How many values a search may make: each takes about a hundred bytes.
const MAX_VALUES: usize = 256 * 1024;

/// A parsed JMESPath expression whose functions all exist.
#[derive(Clone)]
pub(super) struct Expression {
    text: Arc<str>,
    ast: Arc<Ast>,
}

impl Expression {
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `text` isn't a valid expression, or calls an unknown function.
    pub(super) fn new(text: &str) -> Result<Self, Error> {
        let ast = jmespath::parse(text).map_err(|error| {
            let problem =
                format!("`{text}` isn't a JMESPath expression: {}, at column {}", error.reason, error.column);
            Error::new(ErrorKind::Invalid, problem)
        })?;
        if let Some(unknown) = functions::first_unknown(&ast) {
            let problem =
                format!("`{text}` calls {unknown}, which isn't a function of JMESPath or of this library");
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        // If a crate enables serde_json's feature `arbitrary_precision`, the interpreter's parser reads a number that
        // isn't a 64-bit integer as an object. A filter with such a number would find nothing.
        if format!("{ast:?}").contains(NUMBER) {
            let problem = format!(
                "`{text}` has a number that isn't a 64-bit integer. This build can't read it, because a \
                 crate enables serde_json's feature `arbitrary_precision`: disable the feature, or leave out the \
                 number"
            );
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        Ok(Self { text: text.into(), ast: Arc::new(ast) })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Finds the expression's value in `json`, as JSON; `None` for null.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `json` isn't JSON, a function can't use its argument, the search exceeds its limits,
    /// or the result contains an expression reference (`&…`).
    pub(super) fn find(&self, json: &[u8]) -> Result<Option<String>, Error> {
        let read = Read::default();
        let runtime = functions::runtime(&read);
        let mut context = Context::new(&self.text, &runtime);
        let document = std::str::from_utf8(json).map_err(|_| self.fails("the text isn't UTF-8"))?;
        let document = read.json(document).map_err(|unread| match unread {
            Unread::NotJson(error) => not_json(&error),
            Unread::TooMany => self.fails("the text is too large or has too many values; use a JSON Pointer"),
        })?;
        // Leaves out the interpreter's error, which may quote its input.
        let found = jmespath::interpret(&document, &self.ast, &mut context)
            .map_err(|_| self.fails("one of its functions got an invalid or oversized argument"))?;
        if found.is_null() {
            return Ok(None);
        }
        match read.written(&found) {
            Some(written) => Ok(Some(written)),
            None => Err(self.fails("its result contains an expression reference (`&…`)")),
        }
    }

    fn fails(&self, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("`{}` can't be evaluated: {why}", self.text))
    }
}

/// The values that a search has read, from the document and from the fields that its functions decode.
#[derive(Clone, Default)]
struct Read(Arc<Mutex<Budgeted>>);

#[derive(Default)]
struct Budgeted {
    values: Values,
    bytes: usize,
}

impl Read {
    fn json(&self, text: &str) -> Result<Rcvar, Unread> {
        self.spend(text.len()).ok_or(Unread::TooMany)?;
        self.locked().values.read(text, MAX_VALUES)
    }

    /// Takes this many bytes from the search's budget.
    fn spend(&self, bytes: usize) -> Option<()> {
        let mut budgeted = self.locked();
        budgeted.bytes = budgeted.bytes.saturating_add(bytes);
        (budgeted.bytes <= MAX_BYTES).then_some(())
    }

    /// How many bytes the search may still spend.
    fn left(&self) -> usize {
        MAX_BYTES.saturating_sub(self.locked().bytes)
    }

    /// Writes the result as JSON. `None` if the result contains an expression reference, which has no form in JSON.
    fn written(&self, found: &Rcvar) -> Option<String> {
        let mut written = String::new();
        write(found, &self.locked().values, &mut written)?;
        Some(written)
    }

    fn locked(&self) -> MutexGuard<'_, Budgeted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(found: &Rcvar, values: &Values, to: &mut String) -> Option<()> {
    match &**found {
        Variable::Null => to.push_str("null"),
        Variable::Bool(bool) => to.push_str(if *bool { "true" } else { "false" }),
        Variable::Number(number) => to.push_str(&values.text_of(found, number)),
        Variable::String(string) => to.push_str(&serde_json::to_string(string).ok()?),
        Variable::Array(elements) => {
            to.push('[');
            for (nth, value) in elements.iter().enumerate() {
                separate(nth, to);
                write(value, values, to)?;
            }
            to.push(']');
        }
        Variable::Object(members) => {
            to.push('{');
            for (nth, (name, value)) in members.iter().enumerate() {
                separate(nth, to);
                to.push_str(&serde_json::to_string(name).ok()?);
                to.push(':');
                write(value, values, to)?;
            }
            to.push('}');
        }
        Variable::Expref(_) => return None,
    }
    Some(())
}

fn separate(nth: usize, to: &mut String) {
    if nth > 0 {
        to.push(',');
    }
}

#[cfg(test)]
mod tests;
