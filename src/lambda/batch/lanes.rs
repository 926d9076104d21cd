//! Splits a batch into lanes: sequential inside a lane, concurrent across lanes.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    panic::{AssertUnwindSafe, catch_unwind},
};

use lambda_runtime::Context;

use super::{
    Batch,
    record::{Reading, Record, Split, Way},
};
use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    internal::KeyExt as _,
    key::{Key, Scope, StoredKey, joined},
    lambda::{source::stable, tenant},
    run::shadow,
    selector,
};

/// The plan for a record that hasn't run yet. Without the record, it's small.
pub(super) struct Planned {
    pub(super) identifier: String,
    pub(super) work: Work,
}

/// A batch's plan.
pub(super) struct Plan<R> {
    pub(super) planned: Vec<Planned>,
    pub(super) lanes: Vec<Lane>,
    /// The records that were read, by their places; empty if they aren't kept.
    pub(super) records: Vec<Option<R>>,
}

/// What to do with a record.
pub(super) enum Work {
    Protected(StoredKey, Fingerprint),
    /// The record has no key, and may run without one.
    Unprotected,
    /// The record can't run, for this reason.
    Refused(ErrorKind, Cow<'static, str>),
}

/// Records that run one after the other, given by their places in the batch.
pub(super) struct Lane {
    pub(super) places: Vec<usize>,
    /// Whether the records after a redelivered record are redelivered too.
    pub(super) is_ordered: bool,
}

/// The property that puts two records into one lane.
#[derive(PartialEq, Eq, Hash)]
enum Shared<'r> {
    Group(Cow<'r, str>),
    /// The records ask for the same operation, so the later ones get the first one's outcome.
    Key(StoredKey),
}

impl<R: Record> Batch<R> {
    /// Plans the batch's records, and assigns them to lanes. Each lane keeps the batch's order. If `keeps` is true, the
    /// plan has the records themselves, so that they aren't read again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a record is from another source, if it has no identifier, since the response couldn't
    /// list that record for redelivery, or if Kafka's cluster has no name.
    pub(super) fn plan(
        &self,
        Split { records, source, .. }: &Split<'_>,
        context: &Context,
        way: Way,
        keeps: bool,
    ) -> Result<Plan<R>, Error> {
        let mut scopes =
            Scopes::new(self.idempotency.scope(R::VIA)?, self.source_name.as_deref(), tenant(context));
        let mut planned = Vec::with_capacity(records.len());
        let mut kept = Vec::with_capacity(if keeps { records.len() } else { 0 });
        let mut lanes: Vec<Lane> = Vec::new();
        let mut lane_of: HashMap<Shared<'_>, usize> = HashMap::new();
        for (place, raw) in records.iter().enumerate() {
            let reading = R::read(raw, way);
            reading.is_of_source()?;
            let Reading { identifier, arn, group, record, .. } = reading;
            let identifier = identifier.ok_or_else(|| unidentified::<R>(place))?.into_owned();
            let source = source.as_deref().unwrap_or(&arn);
            if R::IS_PARTITIONED && source.is_empty() && self.source_name.is_none() {
                return Err(nameless::<R>());
            }
            let work = self.work(&record, scopes.of(source)?);
            let shared = match (group, &work) {
                (Some(group), _) => Some(Shared::Group(group)),
                (None, Work::Protected(key, _)) => Some(Shared::Key(key.clone())),
                (None, _) => None,
            };
            let is_ordered = matches!(shared, Some(Shared::Group(_)));
            match shared.map(|shared| lane_of.entry(shared)) {
                Some(Entry::Occupied(known)) => lanes[*known.get()].places.push(place),
                unknown => {
                    if let Some(Entry::Vacant(unknown)) = unknown {
                        unknown.insert(lanes.len());
                    }
                    lanes.push(Lane { places: vec![place], is_ordered });
                }
            }
            planned.push(Planned { identifier, work });
            if keeps {
                kept.push(record.ok());
            }
        }
        Ok(Plan { planned, lanes, records: kept })
    }

    fn work(&self, record: &Result<R, Error>, scope: &Scope) -> Work {
        let refused = |kind: ErrorKind, why: Cow<'static, str>| {
            if shadow::lets_pass(self.idempotency.driver(), kind.as_str()) {
                return Work::Unprotected;
            }
            Work::Refused(kind, why)
        };
        let record = match record {
            Ok(record) => record,
            // An unreadable record can't be passed to a handler, whatever the mode is.
            Err(error) => return Work::Refused(error.kind(), error.to_string().into()),
        };
        // A panic in `key` fails this record only.
        let key = catch_unwind(AssertUnwindSafe(|| (self.key)(record)));
        match key {
            Ok(Ok(Some(key))) => {
                let fingerprint = self.fingerprint(record, &key);
                Work::Protected(StoredKey::new(scope, &key), fingerprint)
            }
            Ok(Ok(None)) if self.choices.required => {
                let why = record.unreadable().map_or_else(|| no_key(record.as_ref()).into(), Cow::from);
                refused(ErrorKind::MissingKey, why)
            }
            Ok(Ok(None)) => Work::Unprotected,
            Ok(Err(error)) => match record.unreadable() {
                Some(why) => refused(error.kind(), why.into()),
                None => refused(error.kind(), error.to_string().into()),
            },
            Err(_) => refused(ErrorKind::Invalid, "its key closure panicked".into()),
        }
    }

    /// The fingerprint of the fields that the worker compares, or else of those that the key brings, or else of the
    /// whole record.
    fn fingerprint(&self, record: &R, key: &Key) -> Fingerprint {
        let chosen = self.fingerprinted.as_deref();
        let chosen = chosen.map(|fields| selector::fingerprint_of(fields, record.as_ref(), "fields"));
        let of_key = || key.compared().map(Fingerprint::from_digest);
        chosen.unwrap_or_else(of_key).unwrap_or_else(|| record.fingerprint())
    }
}

/// Says that a record has no key, and which names its content has: the closure may look for another one.
fn no_key(content: &[u8]) -> String {
    format!("it has no idempotency key: the closure returned none, and {}", selector::names_in(content))
}

/// Returns the text that represents a record's source and tenant in the scope of its key. Pass the text to
/// [`Scope::with_caller`](crate::Scope::with_caller). The source is the ARN of the queue, stream or table, or the name
/// that [`Batch::source_name`] sets in place of the ARN.
pub fn scope_caller(source: &str, tenant: Option<&str>) -> String {
    match tenant {
        Some(tenant) => joined(&["source", source, "tenant", tenant]),
        None => joined(&["source", source]),
    }
}

/// The scopes of a batch's keys, one per source, so that two sources of one function share no keys.
struct Scopes<'a> {
    base: Scope,
    /// The user's name for the source, in place of its ARN.
    name: Option<&'a str>,
    tenant: Option<&'a str>,
    /// The previous record's source and scope. The next record probably has the same source: a batch rarely has two.
    last: Option<(String, Scope)>,
}

impl<'a> Scopes<'a> {
    fn new(base: Scope, name: Option<&'a str>, tenant: Option<&'a str>) -> Self {
        Self { base, name, tenant, last: None }
    }

    /// Returns the scope of the key of a record from the source with this ARN.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the source's name and the tenant are too long together.
    fn of(&mut self, arn: &str) -> Result<&Scope, Error> {
        let source = self.name.unwrap_or_else(|| stable(arn));
        let last = self.last.take().filter(|(last, _)| last == source);
        let (source, scope) = match last {
            Some(last) => last,
            None => {
                let caller = scope_caller(source, self.tenant);
                (source.to_owned(), self.base.with_caller(caller)?)
            }
        };
        Ok(&self.last.insert((source, scope)).1)
    }
}

fn nameless<R: Record>() -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!(
            "the `{}` event names no cluster, so two clusters could share keys. Name the cluster with `source_name`; \
             nothing ran",
            R::SOURCE
        ),
    )
}

fn unidentified<R: Record>(place: usize) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("record {place} of the `{}` batch has no identifier; nothing ran", R::SOURCE),
    )
}
