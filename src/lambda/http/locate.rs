//! Finds the record of a request without calling the handler, and describes the layer for tools.

use ::http::HeaderName;
use futures_util::FutureExt as _;
use lambda_http::RequestExt as _;
use lambda_runtime::Context;
use serde_json::value::RawValue;

use super::{
    HttpLayer,
    body_key::{KeySource, Keyed},
    config::{Config, Unnamed},
    guard,
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
    Ok(guard::request_of(event)?.into_body().to_vec())
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
        description.ignored_cookies = config.credentials.ignored_cookies().map(str::to_owned).collect();
        description.credential_headers = names(config.credentials.headers());
        description.path_from_closure = config.path.is_some();
        let fields = config.fingerprinted_fields.iter().flatten();
        description.compared_fields = fields.map(|field| field.as_str().to_owned()).collect();
        description.compared_headers = names(&config.fingerprinted_headers);
        description.raw_body = config.raw_body;
        description.ignored_query.clone_from(&config.ignored_query);
        description.operations = config.operations.iter().cloned().collect();
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
        let request = guard::request_of(event)?.with_lambda_context(context.clone());
        let (mut parts, body) = request.into_parts();
        let routed = Routed::enter(&self.config, &mut parts);
        let refused = |problem: &Problem| problem.as_error();
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
