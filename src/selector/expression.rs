//! JMESPath, with numbers as they were sent.
//!
//! The interpreter holds a number that is no 64-bit integer as a float. What a search finds is therefore looked up in
//! the texts that it read: the number there that is this float is the one that was found. Where two numbers of
//! different texts are one float, nobody can tell which it was, and the search fails rather than let two ids be one.

mod functions;
mod numbers;

use std::sync::{Arc, Mutex, PoisonError};

use jmespath::{Context, Rcvar, Variable, ast::Ast};
use serde_json::Value;

use self::numbers::Numbers;
use super::not_json;
use crate::error::{Error, ErrorKind};

/// A JMESPath expression that has been parsed, and whose functions exist.
#[derive(Clone)]
pub(super) struct Expression {
    text: Arc<str>,
    ast: Arc<Ast>,
}

impl Expression {
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `text` is no expression, or calls what is no function.
    pub(super) fn new(text: &str) -> Result<Self, Error> {
        let ast = jmespath::parse(text).map_err(|error| {
            let problem =
                format!("`{text}` is no JMESPath expression: {}, at column {}", error.reason, error.column);
            Error::new(ErrorKind::Invalid, problem)
        })?;
        if let Some(unknown) = functions::first_unknown(&ast) {
            let problem =
                format!("`{text}` calls {unknown}, which is no function of JMESPath or of this library");
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        Ok(Self { text: text.into(), ast: Arc::new(ast) })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// What the expression finds in `json`, as JSON; `None` for null.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `json` is not JSON, a function cannot do with what it is given, or what is found
    /// cannot be told exactly.
    pub(super) fn find(&self, json: &[u8]) -> Result<Option<String>, Error> {
        let read = Read::default();
        let runtime = functions::runtime(&read);
        let mut context = Context::new(&self.text, &runtime);
        let document = std::str::from_utf8(json).map_err(|_| self.fails("the text is not UTF-8"))?;
        let document = read.json(document).map_err(|error| not_json(&error))?;
        // The interpreter's error may quote what it was given.
        let found = jmespath::interpret(&document, &self.ast, &mut context)
            .map_err(|_| self.fails("one of its functions was given what it cannot use"))?;
        if found.is_null() {
            return Ok(None);
        }
        let texts = read.texts();
        let mut written = String::new();
        match write(&found, &mut Numbers::of(&texts), &mut written) {
            Some(()) => Ok(Some(written)),
            None => Err(self.fails("what it finds cannot be told exactly; use a JSON Pointer")),
        }
    }

    fn fails(&self, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("`{}` cannot be found: {why}", self.text))
    }
}

/// The JSON texts that a search has read: the document, and what its functions decoded.
#[derive(Clone, Default)]
struct Read(Arc<Mutex<Vec<String>>>);

impl Read {
    fn json(&self, text: &str) -> Result<Rcvar, serde_json::Error> {
        // By way of a `Value`, which reads numbers whatever the build has switched on in `serde_json`.
        let value: Value = serde_json::from_str(text)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        Ok(Rcvar::new(variable(value)))
    }

    fn texts(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn variable(value: Value) -> Variable {
    match value {
        Value::Null => Variable::Null,
        Value::Bool(bool) => Variable::Bool(bool),
        Value::Number(number) => Variable::Number(number),
        Value::String(string) => Variable::String(string),
        Value::Array(values) => Variable::Array(values.into_iter().map(variable).map(Rcvar::new).collect()),
        Value::Object(members) => {
            let members = members.into_iter();
            Variable::Object(members.map(|(name, value)| (name, Rcvar::new(variable(value)))).collect())
        }
    }
}

/// Writes what was found as JSON; `None` if a number of it cannot be told, or it is no value at all.
fn write(found: &Variable, numbers: &mut Numbers<'_>, to: &mut String) -> Option<()> {
    match found {
        Variable::Null => to.push_str("null"),
        Variable::Bool(bool) => to.push_str(if *bool { "true" } else { "false" }),
        Variable::Number(number) => to.push_str(&numbers.text_of(number)?),
        Variable::String(string) => to.push_str(&serde_json::to_string(string).ok()?),
        Variable::Array(values) => {
            to.push('[');
            for (nth, value) in values.iter().enumerate() {
                separate(nth, to);
                write(value, numbers, to)?;
            }
            to.push(']');
        }
        Variable::Object(members) => {
            to.push('{');
            for (nth, (name, value)) in members.iter().enumerate() {
                separate(nth, to);
                to.push_str(&serde_json::to_string(name).ok()?);
                to.push(':');
                write(value, numbers, to)?;
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
