//! How long a front end waits for a response, and how large a response it delivers.

use std::time::Duration;

use lambda_http::request::RequestContext;

use crate::time::Timestamp;

/// API Gateway's integration timeout for REST, HTTP and WebSocket APIs is at most 29 or 30 seconds, unless a
/// quota increase was granted ("Amazon API Gateway quotas", API Gateway developer guide).
const API_GATEWAY: Duration = Duration::from_secs(29);
/// A REST API may stream a response for 15 minutes. But it closes the stream of a Regional or private endpoint after 5
/// idle minutes ("Stream the integration response", API Gateway developer guide), and the stream is idle while the
/// layer buffers.
const IDLE_STREAM: Duration = Duration::from_secs(5 * 60);

/// Lambda's limit for a response that isn't streamed: 6 MB and 100 bytes, as its own error says ("Response
/// payload size exceeded maximum allowed payload size (6291556 bytes)"; "Lambda quotas", AWS Lambda developer
/// guide).
const LAMBDA: usize = 6_291_556;
/// A load balancer's limit for a function's response as JSON ("Use Lambda functions as targets", Application
/// Load Balancers user guide).
const LOAD_BALANCER: usize = 1024 * 1024;

/// The front end's limit for a function's response as JSON, in bytes; `None` without a front end.
pub(super) fn most_bytes(context: Option<&RequestContext>) -> Option<usize> {
    match context? {
        RequestContext::Alb(_) => Some(LOAD_BALANCER),
        _ => Some(LAMBDA),
    }
}

/// The time at which the front end stops waiting: the request's start plus `answer_within`, or plus the front end's
/// default if `answer_within` isn't set. Function URLs, load balancers and requests without a front end have no
/// default. For these, the result is then `None`, and the invocation's deadline is the only limit.
pub(super) fn caller_waits_until(
    context: Option<&RequestContext>,
    answer_within: Option<Duration>,
    is_streaming: bool,
    now: Timestamp,
) -> Option<Timestamp> {
    let (limit, started) = match context {
        Some(RequestContext::ApiGatewayV1(context)) => {
            let limit = if is_streaming { IDLE_STREAM } else { API_GATEWAY };
            (Some(limit), context.request_time_epoch)
        }
        Some(RequestContext::WebSocket(context)) => (Some(API_GATEWAY), context.request_time_epoch),
        Some(RequestContext::ApiGatewayV2(context)) => {
            let is_function_url =
                context.domain_name.as_deref().is_some_and(|name| name.contains(".lambda-url."));
            ((!is_function_url).then_some(API_GATEWAY), context.time_epoch)
        }
        _ => (None, 0),
    };
    let limit = answer_within.or(limit)?;
    let started = u64::try_from(started).map(Timestamp::from_millis).unwrap_or_default();
    // A start that's in the future or too long ago comes from another clock or a saved event.
    let is_credible = started <= now && started.until(now) < limit;
    Some(if is_credible { started } else { now }.saturating_add(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_000_000_000;

    fn rest(started: u64) -> RequestContext {
        let json = format!(r#"{{"requestTimeEpoch": {started}, "identity": {{}}, "httpMethod": "POST"}}"#);
        RequestContext::ApiGatewayV1(serde_json::from_str(&json).unwrap())
    }

    fn http_api(domain: &str) -> RequestContext {
        let started = NOW - 1000;
        let http = r#"{"method": "POST"}"#;
        let json = format!(r#"{{"timeEpoch": {started}, "domainName": "{domain}", "http": {http}}}"#);
        RequestContext::ApiGatewayV2(serde_json::from_str(&json).unwrap())
    }

    fn left(context: Option<RequestContext>, answer_within: Option<u64>) -> Option<u128> {
        let now = Timestamp::from_millis(NOW);
        let until = caller_waits_until(context.as_ref(), answer_within.map(Duration::from_secs), false, now)?;
        Some(now.until(until).as_millis())
    }

    #[test]
    fn rest_apis_wait_longer_for_streams() {
        let now = Timestamp::from_millis(NOW);
        let left = |answer_within| {
            Some(now.until(caller_waits_until(Some(&rest(NOW - 5000)), answer_within, true, now)?).as_secs())
        };
        assert_eq!(left(None), Some(295));
        assert_eq!(left(Some(Duration::from_secs(30))), Some(25), "an edge-optimized endpoint");
    }

    #[test]
    fn api_gateway_timeouts_start_with_the_request() {
        assert_eq!(left(Some(rest(NOW - 5000)), None), Some(24_000));
        assert_eq!(left(Some(http_api("abc.execute-api.eu-west-1.amazonaws.com")), None), Some(28_000));
        assert_eq!(left(Some(rest(NOW - 5000)), Some(60)), Some(55_000), "a raised quota");
    }

    #[test]
    fn implausible_start_times_count_as_now() {
        for started in [0, NOW - 29_000, NOW + 1] {
            assert_eq!(left(Some(rest(started)), None), Some(29_000), "{started}");
        }
    }

    #[test]
    fn front_ends_limit_response_sizes() {
        assert_eq!(most_bytes(None), None);
        assert_eq!(most_bytes(Some(&rest(NOW))), Some(6_291_556));
        let alb: lambda_http::aws_lambda_events::alb::AlbTargetGroupRequestContext =
            serde_json::from_str(r#"{"elb": {"targetGroupArn": "arn"}}"#).unwrap();
        assert_eq!(most_bytes(Some(&RequestContext::Alb(alb))), Some(1_048_576));
    }

    #[test]
    fn only_api_gateway_has_a_default_timeout() {
        assert_eq!(left(None, None), None);
        assert_eq!(left(Some(http_api("abc.lambda-url.eu-west-1.on.aws")), None), None);
        assert_eq!(left(Some(http_api("abc.lambda-url.eu-west-1.on.aws")), Some(10)), Some(9000));
    }
}
