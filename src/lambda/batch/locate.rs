//! Finds the stored records of a batch's operations without running a handler, and describes the worker for tools.

use lambda_runtime::Context;
use serde_json::value::RawValue;

use super::{Batch, Record, lanes::Work, record::Way};
use crate::{
    error::Error,
    lambda::{
        Description, Located,
        describe::{CLOSURE, Part},
    },
};

impl<R: Record> Batch<R> {
    /// Describes the worker, for tools that look for its records; see [`Description`]. A closure can't be described, so
    /// the description only says that the key comes from one. Replace [`key_from`](Description::key_from) by the name of
    /// the function in [`keys`](crate::lambda::keys), or add [`key_fields`](Description::key_fields).
    pub fn describe(&self) -> Description {
        let source_name = self.source_name.as_deref().map(str::to_owned);
        let key_from = Some(CLOSURE.to_owned());
        let compared = self.fingerprinted.as_deref().unwrap_or_default().iter();
        let compared_fields = compared.map(|field| field.as_str().to_owned()).collect();
        Description { source_name, key_from, compared_fields, ..Description::of(&self.idempotency, R::VIA) }
    }

    /// Locates the stored records of the operations that this event asks for, in the batch's order. If a record of
    /// the batch has no key, or an invalid one, it's left out.
    ///
    /// # Errors
    ///
    /// The errors with which the worker would refuse the whole event.
    pub(in crate::lambda) fn locate(
        &self,
        event: &RawValue,
        context: &Context,
    ) -> Result<Vec<Located>, Error> {
        let split = R::split(event)?;
        let way = Way { in_order: self.choices.in_order, by_pipe: split.by_pipe };
        let located = self.plan(&split, context, way, false)?.planned.into_iter().filter_map(|planned| {
            match planned.work {
                Work::Protected(key, fingerprint) => {
                    Some(Located::new(key, Some(fingerprint)).of_part(planned.identifier))
                }
                Work::Unprotected | Work::Refused(..) => None,
            }
        });
        Ok(located.collect())
    }

    /// Returns each record's identifier, with its content, or why the content can't be read.
    pub(in crate::lambda) fn contents(event: &RawValue) -> Result<Vec<Part>, Error> {
        let split = R::split(event)?;
        let part = |raw| {
            let reading = R::read(raw, Way { in_order: false, by_pipe: split.by_pipe });
            let content = reading.record.map_err(|error| error.to_string());
            let content = content.and_then(|record| match record.unreadable() {
                Some(why) => Err(why.to_owned()),
                None => Ok(record.as_ref().to_vec()),
            });
            (reading.identifier.map(|identifier| identifier.into_owned()), content)
        };
        Ok(split.records.iter().copied().map(part).collect())
    }
}
