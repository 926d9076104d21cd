//! The path of a request: as the front end received it, and as the API's routes name it.

use std::{borrow::Cow, fmt::Write as _, mem, sync::Arc};

use ::http::{Uri, request::Parts, uri::PathAndQuery};
use lambda_http::{RequestExt, aws_lambda_events::query_map::QueryMap, request::RequestContext};

use super::{HttpLayer, config::Config, operations::segments};

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Takes the request's whole path from a closure. The layer compares this path when a key is used again, and the
    /// other closures see it as the URI's path. If the closure returns `None`, the layer finds the path itself.
    ///
    /// Use it if something outside the layer shortens the URI's path and no event of a front end has the whole path.
    /// Otherwise `/accounts/2/capture` gets the recorded response of `/accounts/1/capture`. For axum's `Router::nest`,
    /// the feature `axum` does the same; [the module](super#paths) has the rules.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// /// An extension that the code that shortens the path sets.
    /// #[derive(Clone)]
    /// struct WholePath(String);
    ///
    /// let layer = idempotency.http().path(|request| Some(request.extensions.get::<WholePath>()?.0.clone()));
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn path(self, path: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|config| config.path = Some(Arc::new(path)))
    }
}

/// The path that the front end received. Without an event, the URI's path, as it was before axum shortened it.
pub(super) fn whole(parts: &Parts) -> &str {
    match parts.extensions.raw_http_path() {
        "" => original(parts).path(),
        raw => raw,
    }
}

/// The URI that the outermost axum router got, for a layer inside `Router::nest`.
fn original(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri;
    }
    &parts.uri
}

/// The end of the path that the API's routes name. It's the same in every stage, and under every base path of a custom
/// domain.
///
/// - A REST API's path begins with the base path. Its resource, such as `/payments/{id}`, says where the route begins.
/// - An HTTP API's path begins with the stage, unless the stage is `$default`. In format 1.0, it may begin with a base
///   path too, and the resource may be `$default`.
pub(super) fn of_route(parts: &Parts) -> &str {
    let whole = whole(parts);
    match parts.extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV1(context)) => match context.resource_path.as_deref() {
            Some(resource) if resource.starts_with('/') => {
                of_resource(whole, resource, parts.extensions.path_parameters_ref()).unwrap_or(whole)
            }
            _ => without_stage(whole, context.stage.as_deref()),
        },
        Some(RequestContext::ApiGatewayV2(context)) => without_stage(whole, context.stage.as_deref()),
        _ => whole,
    }
}

fn without_stage<'a>(path: &'a str, stage: Option<&str>) -> &'a str {
    let stage = stage.filter(|stage| !stage.is_empty() && *stage != "$default");
    let rest = stage.and_then(|stage| path.strip_prefix('/')?.strip_prefix(stage));
    rest.filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(path)
}

/// The end of `path` that matches a REST API's resource; `None` if they don't match. The last segment of a resource may
/// be greedy: `{proxy+}` stands for as many segments as the parameter `proxy` has.
fn of_resource<'a>(path: &'a str, resource: &str, parameters: Option<&QueryMap>) -> Option<&'a str> {
    let length = segments(resource).try_fold(0, |length, segment| {
        let greedy = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix("+}"));
        Some(length + greedy.map_or(Some(1), |name| Some(segments(parameters?.first(name)?).count()))?)
    })?;
    let trimmed = path.trim_end_matches('/');
    let begin = match length {
        0 => trimmed.len(),
        _ => trimmed.rmatch_indices('/').nth(length - 1)?.0,
    };
    let mut pairs = segments(resource).zip(segments(&trimmed[begin..]));
    pairs
        .all(|(of_resource, segment)| of_resource.starts_with('{') || of_resource == segment)
        .then(|| &path[begin..])
}

/// The path that the closures of a layer see, while they see the request.
#[derive(Debug, Default)]
pub(super) struct Routed {
    /// The path from the closure of [`HttpLayer::path`].
    given: Option<String>,
    /// The handler's URI, if the closures see another one.
    handlers: Option<Uri>,
}

impl Routed {
    /// Gives the request the path that the API's routes name, if a closure sees the request.
    pub(super) fn enter(config: &Config, parts: &mut Parts) -> Self {
        let given = config.path.as_ref().and_then(|path| path(parts));
        let shows = config.shows_request && config.methods.contains(&parts.method);
        let uri = if shows { routed(parts, given.as_deref()) } else { None };
        Self { given, handlers: uri.map(|uri| mem::replace(&mut parts.uri, uri)) }
    }

    /// The path from the closure of [`HttpLayer::path`], if any.
    pub(super) fn given(&self) -> Option<&str> {
        self.given.as_deref()
    }

    /// Gives the request back its own URI, for the handler.
    pub(super) fn leave(self, parts: &mut Parts) {
        if let Some(uri) = self.handlers {
            parts.uri = uri;
        }
    }
}

/// The URI with the path that the API's routes name; `None` if the URI has this path already.
fn routed(parts: &Parts, given: Option<&str>) -> Option<Uri> {
    let whole = whole(parts);
    let route = given.unwrap_or_else(|| of_route(parts));
    let of_uri = parts.uri.path();
    if route == of_uri {
        return None;
    }
    // `lambda_http` removes dot segments from the URI's path, and the handler's router sees that path.
    let path = if given.is_none() && has_dots(whole) { shortened(parts, whole, route) } else { route };
    let is_cut = whole.contains(['#', '?']);
    let query = match parts.extensions.query_string_parameters_ref() {
        Some(query) if is_cut => Some(Cow::Owned(query.to_query_string())),
        _ if is_cut && parts.extensions.request_context_ref().is_some() => None,
        _ => parts.uri.query().map(Cow::Borrowed),
    };
    with_path(&parts.uri, path, query.as_deref())
}

/// Whether `lambda_http` may change the path further than to encode some of its characters.
fn has_dots(path: &str) -> bool {
    path.contains("/.") || path.contains("/%2") || path.contains(|c: char| c == '\\' || c.is_ascii_control())
}

/// The URI's path without the stage and the base path.
fn shortened<'a>(parts: &'a Parts, whole: &str, route: &str) -> &'a str {
    let stage = match parts.extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV1(context)) => context.stage.as_deref(),
        Some(RequestContext::ApiGatewayV2(context)) => context.stage.as_deref(),
        _ => None,
    };
    let base = whole.strip_suffix(route).unwrap_or_default();
    let path = without_stage(parts.uri.path(), stage);
    path.strip_prefix(base).filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// Replaces the path and the query. Encodes the characters that can't be in a URI's path, as `lambda_http` does.
fn with_path(uri: &Uri, path: &str, query: Option<&str>) -> Option<Uri> {
    let mut text = String::with_capacity(path.len() + 1 + query.map_or(0, str::len));
    if !path.starts_with('/') {
        text.push('/');
    }
    for c in path.chars() {
        let is_plain = c.is_ascii_graphic() && !matches!(c, '"' | '#' | '<' | '>' | '?' | '`' | '{' | '}');
        if is_plain {
            text.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            write!(text, "%{byte:02X}").ok()?;
        }
    }
    if let Some(query) = query {
        text.push('?');
        text.push_str(query);
    }
    let mut replaced = uri.clone().into_parts();
    replaced.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(replaced).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> QueryMap {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
        QueryMap::from(pairs.collect::<std::collections::HashMap<_, _>>())
    }

    #[test]
    fn resources_show_where_routes_begin() {
        let proxy = parameters(&[("proxy", "a/b"), ("id", "1")]);
        for (path, resource, route) in [
            ("/payments", "/payments", Some("/payments")),
            ("/shop/payments", "/payments", Some("/payments")),
            ("/shop/v1/payments/1/", "/payments/{id}", Some("/payments/1/")),
            ("/shop/files/a/b", "/files/{proxy+}", Some("/files/a/b")),
            ("/shop/a/b", "/{proxy+}", Some("/a/b")),
            ("/shop", "/", Some("")),
            ("/", "/", Some("/")),
            ("/shop/refunds", "/payments", None),
            ("/1", "/payments/{id}", None),
            ("/payments//1", "/payments/{id}", None),
            ("/a", "/{proxy+}", None),
            ("/a", "/{other+}", None),
        ] {
            assert_eq!(of_resource(path, resource, Some(&proxy)), route, "{path}, {resource}");
        }
    }

    #[test]
    fn only_whole_segments_are_stages() {
        for (path, stage, rest) in [
            ("/v1/payments", Some("v1"), "/payments"),
            ("/v1", Some("v1"), ""),
            ("/v10/payments", Some("v1"), "/v10/payments"),
            ("/payments", Some("$default"), "/payments"),
            ("/payments", Some(""), "/payments"),
            ("/payments", None, "/payments"),
        ] {
            assert_eq!(without_stage(path, stage), rest, "{path}, {stage:?}");
        }
    }

    #[test]
    fn replaced_paths_are_encoded() {
        let uri: Uri = "https://shop/prod/a?x=1".parse().unwrap();
        for (path, encoded) in [("/a b#c?d\u{e9}", "/a%20b%23c%3Fd%C3%A9"), ("", "/"), ("a%23", "/a%23")] {
            let replaced = with_path(&uri, path, Some("x=1")).unwrap();
            assert_eq!(replaced.to_string(), format!("https://shop{encoded}?x=1"));
        }
        assert_eq!(with_path(&uri, "/a", None).unwrap().to_string(), "https://shop/a");
    }
}
