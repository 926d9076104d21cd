//! A WebSocket API's messages.

use ::http::{Method, request::Parts};
use lambda_http::{
    RequestExt, aws_lambda_events::apigw::ApiGatewayWebsocketProxyRequestContext, request::RequestContext,
};

/// The method for which the layer's settings count. `lambda_http` makes every event of a WebSocket API a GET. A message
/// asks for an operation, so it counts as POST. `$connect` and `$disconnect` events stay GETs, and pass through.
pub(super) fn method(parts: &Parts) -> &Method {
    if message(parts).is_some() { &Method::POST } else { &parts.method }
}

/// The context of a message. An event of an unknown type counts as a message.
pub(super) fn message(parts: &Parts) -> Option<&ApiGatewayWebsocketProxyRequestContext> {
    match parts.extensions.request_context_ref()? {
        RequestContext::WebSocket(context)
            if !matches!(context.event_type.as_deref(), Some("CONNECT" | "DISCONNECT")) =>
        {
            Some(context)
        }
        _ => None,
    }
}
