//! The parts of a request that are compared when its key is used again.

use ::http::request::Parts;

use super::{
    HttpLayer,
    caller::Caller,
    config::Unnamed,
    request::{compared_body, fingerprint},
    websocket::message,
};
use crate::fingerprint::Fingerprint;
use crate::internal::FingerprintExt as _;

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// The fingerprint of the parts that must match when a key is used again.
    pub(super) fn fingerprint(
        &self,
        parts: &Parts,
        caller: Option<&Caller>,
        given: Option<&str>,
        body: &[u8],
    ) -> Fingerprint {
        if self.config.key_alone {
            return Fingerprint::builder("http-key-alone").finish();
        }
        let Some(message) = message(parts) else { return fingerprint(&self.config, parts, given, body) };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let mut builder = Fingerprint::builder("websocket").part("route", text(&message.route_key));
        // A message carries no credentials, and the handler may know its sender by the connection. So unless an
        // authorizer named the sender, another connection must not get the recorded response.
        if caller.is_none() && self.config.unnamed != Unnamed::Shared {
            builder = builder.part("connection", text(&message.connection_id));
        }
        compared_body(&self.config, parts, body, builder)
    }
}
