//! Operations that have a name because of their request's path.

use std::borrow::Cow;

use super::HttpLayer;
use crate::{
    error::{Error, ErrorKind},
    idempotency::Idempotency,
};

/// The operation's name for each path.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(pub(super) Vec<(String, String)>);

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Names the operations by their paths: each entry is a path and an operation's name. Each operation has its own
    /// keys, so a client that sends one key to `/charges` and to `/refunds` asks for two operations, and doesn't get
    /// 422. The first entry that fits counts. The name replaces [`operation`](Self::operation), which other paths keep.
    ///
    /// A path is written as an API's route: `{id}` stands for one segment, and `{rest+}` at the end for one or more. A
    /// slash at the end doesn't count. The layer compares it with the path [as the routes name it](super#paths),
    /// without the stage.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a path doesn't begin with a slash, or has `{rest+}` before its end, or if a name isn't
    /// valid for [`operation`](Self::operation).
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().operations([("/charges", "charge"), ("/charges/{id}/refunds", "refund")])?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn operations<'a>(self, names: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let mut operations = Vec::new();
        for (path, name) in names {
            self.idempotency.named(name)?;
            let greedy = segments(path).position(is_greedy);
            if !path.starts_with('/') || greedy.is_some_and(|at| at + 1 < segments(path).count()) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{path:?} isn't a valid path; use one such as /charges, /charges/{{id}} or /files/{{rest+}}"
                    ),
                ));
            }
            operations.push((path.to_owned(), name.to_owned()));
        }
        // `named_by` gets the path that closures see.
        Ok(self.with_closure(|config| config.operations = Operations(operations)))
    }
}

impl Operations {
    /// `idempotency` with the operation's name for this path, if the path has one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name isn't valid.
    pub(super) fn named_by<'a>(
        &self,
        path: &str,
        idempotency: &'a Idempotency,
    ) -> Result<Cow<'a, Idempotency>, Error> {
        match self.0.iter().find(|(template, _)| fits(template, path)) {
            Some((_, name)) => idempotency.named(name).map(Cow::Owned),
            None => Ok(Cow::Borrowed(idempotency)),
        }
    }
}

/// The parts of a path between its slashes.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_matches('/');
    (!path.is_empty()).then(|| path.split('/')).into_iter().flatten()
}

fn is_greedy(segment: &str) -> bool {
    segment.starts_with('{') && segment.ends_with("+}")
}

fn fits(template: &str, path: &str) -> bool {
    let mut actual = segments(path);
    for expected in segments(template) {
        let Some(segment) = actual.next() else { return false };
        if is_greedy(expected) {
            return true;
        }
        let is_parameter = expected.starts_with('{') && expected.ends_with('}');
        if !is_parameter && expected != segment {
            return false;
        }
    }
    actual.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_fit_whole_paths() {
        for (template, path, expected) in [
            ("/", "/", true),
            ("/", "/charges", false),
            ("/charges", "/charges/", true),
            ("/charges", "/charges/17", false),
            ("/charges", "/Charges", false),
            ("/charges/{id}", "/charges/17", true),
            ("/charges/{id}", "/charges", false),
            ("/charges/{id}/refunds", "/charges/17/refunds", true),
            ("/charges/{id}/refunds", "/charges/17/18/refunds", false),
            ("/files/{rest+}", "/files/a/b", true),
            ("/files/{rest+}", "/files", false),
        ] {
            assert_eq!(fits(template, path), expected, "{template} {path}");
        }
    }
}
