//! Finds the record of a request without calling the handler, and describes the layer for tools.

use ::http::{HeaderName, Request};
use futures_util::FutureExt as _;
use lambda_http::{Body, RequestExt as _, request::LambdaRequest};
use lambda_runtime::Context;
use serde_json::value::RawValue;

use super::{
    HttpLayer,
    body_key::{KeySource, Keyed},
    config::{Config, Unnamed},
    guard::{Unreadable, prepared},
    path::Routed,
    problem::Problem,
};
use crate::{
    error::{Error, ErrorKind},
    key::StoredKey,
    lambda::{Description, Located, describe::CLOSURE},
};

/// Returns the body of this event's request.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't an HTTP event, or can't be read.
pub(in crate::lambda) fn body_of(event: &RawValue) -> Result<Vec<u8>, Error> {
    Ok(request_of(event)?.into_body().to_vec())
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Describes the layer, for tools that look for its records; see [`Description`].
    pub fn describe(&self) -> Description {
        let config = &self.config;
        let names = |names: &[HeaderName]| names.iter().map(|name| name.as_str().to_owned()).collect();
        let mut description = Description::of(&self.idempotency, "http");
        description.key_headers = names(&config.keys.names);
        if config.methods != Config::default().methods {
            let methods = config.methods.iter().map(|method| method.as_str().to_owned());
            description.methods = Some(methods.collect());
        }
        match config.key.as_ref() {
            Some(KeySource::Fields(fields)) => description = description.keyed_by(fields),
            Some(KeySource::Closure(_)) => description.key_from = Some(CLOSURE.to_owned()),
            None => {}
        }
        description.caller_from_closure = config.resolver.is_some();
        description.shared_namespace = config.unnamed == Unnamed::Shared;
        description.api_name.clone_from(&config.api_name);
        description.ignored_cookies = config.credentials.ignored_cookies.clone();
        description.credential_headers = names(&config.credentials.headers);
        description.path_from_closure = config.path.is_some();
        let fields = config.fingerprinted_fields.iter().flatten();
        description.compared_fields = fields.map(|field| field.as_str().to_owned()).collect();
        description.compared_headers = names(&config.fingerprinted_headers);
        description.raw_body = config.raw_body;
        description.ignored_query.clone_from(&config.ignored_query);
        description.operations = config.operations.0.clone();
        description.key_alone = config.key_alone;
        description
    }

    /// Returns the record of the operation that this event asks for; an empty list if the request runs without a key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the event isn't an HTTP event. Otherwise, the problem that the client would get.
    pub(in crate::lambda) fn locate(
        &self,
        event: &RawValue,
        context: &Context,
    ) -> Result<Vec<Located>, Error> {
        let request = request_of(event)?.with_lambda_context(context.clone());
        let (mut parts, body) = request.into_parts();
        let routed = Routed::enter(&self.config, &mut parts);
        let refused = |problem: &Problem| Error::from(problem);
        // A body of Lambda's own type is complete, so there's nothing to wait for.
        let keyed = self.keyed(&parts, body).now_or_never();
        let keyed = keyed.ok_or_else(|| Error::new(ErrorKind::Invalid, "the body isn't complete"))?;
        let Keyed { key, body } = keyed.map_err(|problem| refused(&problem))?;
        let Some((key, origin)) = key else { return Ok(Vec::new()) };
        let caller = self.caller_of(&parts).map_err(|problem| refused(&problem))?;
        let scope = self.scope(&parts, caller.as_ref(), origin).map_err(|problem| refused(&problem))?;
        let fingerprint = self.fingerprint(&parts, caller.as_ref(), routed.given(), body.bytes());
        Ok(vec![Located::new(StoredKey::new(&scope, &key), Some(fingerprint))])
    }
}

/// The request that the layer gets for this event.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't an HTTP event, or can't be read.
fn request_of(event: &RawValue) -> Result<Request<Body>, Error> {
    let invalid = |why: &'static str| Error::new(ErrorKind::Invalid, why);
    let event: LambdaRequest = serde_json::from_str(event.get())
        .map_err(|_| invalid("the event isn't an HTTP request of a known front end"))?;
    let (event, body) = prepared(event);
    let body = body.map_err(|unreadable| {
        invalid(match unreadable {
            Unreadable::Body => {
                "the event's body isn't valid base64, so the function answers 400 and `request-unreadable`"
            }
            Unreadable::Uri => {
                "the event's host, path and query don't form a valid URI, so the function answers 400 and \
                 `request-unreadable`; a sample from the documentation may have a placeholder as its host"
            }
        })
    })?;
    Ok(Request::from(event).map(|own| body.unwrap_or(own)))
}
