//! A WebSocket API's messages: which of its events are protected, and what's compared.

use ::http::{Method, request::Parts};
use lambda_http::{
    RequestExt, aws_lambda_events::apigw::ApiGatewayWebsocketProxyRequestContext, request::RequestContext,
};

use super::{
    HttpLayer,
    caller::Caller,
    config::Unnamed,
    request::{compared_body, fingerprint},
};
use crate::fingerprint::Fingerprint;

/// The method for which the layer's settings count. `lambda_http` makes every event of a WebSocket API a GET. A message
/// asks for an operation, so it counts as POST. `$connect` and `$disconnect` events stay GETs, and pass through.
pub(super) fn method(parts: &Parts) -> &Method {
    if message(parts).is_some() { &Method::POST } else { &parts.method }
}

/// The context of a message. An event of an unknown type counts as a message.
fn message(parts: &Parts) -> Option<&ApiGatewayWebsocketProxyRequestContext> {
    match parts.extensions.request_context_ref()? {
        RequestContext::WebSocket(context)
            if !matches!(context.event_type.as_deref(), Some("CONNECT" | "DISCONNECT")) =>
        {
            Some(context)
        }
        _ => None,
    }
}

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
