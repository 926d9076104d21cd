//! Finds the record of an event without calling the handler, and describes the layer for tools.

use lambda_runtime::Context;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{EventLayer, KeyFrom, not_an_event};
use crate::{
    error::Error,
    lambda::{Description, Located, describe::CLOSURE},
};

impl<T: DeserializeOwned> EventLayer<T> {
    /// Describes the layer, for tools that look for its records; see [`Description`].
    pub fn describe(&self) -> Description {
        let mut description = Description::of(&self.idempotency, "event");
        match &self.key_from {
            KeyFrom::Fields(fields) => description = description.keyed_by(fields),
            KeyFrom::RequestId => description.key_from = Some("request id".to_owned()),
            KeyFrom::Closure => description.key_from = Some(CLOSURE.to_owned()),
        }
        let compared = self.fingerprinted.iter().flatten();
        description.compared_fields = compared.map(|field| field.as_str().to_owned()).collect();
        description
    }

    /// Locates the record of the operation that this event asks for; `None` if the event has no key and needs none.
    ///
    /// # Errors
    ///
    /// The errors with which the layer would refuse the event.
    pub(in crate::lambda) fn locate(
        &self,
        raw: &RawValue,
        context: &Context,
    ) -> Result<Option<Located>, Error> {
        let payload: T = serde_json::from_str(raw.get()).map_err(|error| not_an_event::<T>(&error))?;
        let keyed = self.keyed((self.key)(&payload, raw, context)?, raw, context)?;
        Ok(keyed.map(|(key, fingerprint)| Located::new(key, Some(fingerprint))))
    }
}
