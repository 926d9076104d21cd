//! Loads the client's configuration from the environment.
//!
//! An empty variable counts as unset, as in boto3 and the JavaScript SDK. Templates set variables conditionally, and a
//! template can't leave one out: `!If [IsLocal, "http://…", ""]`. The Rust SDK would take the empty text as an endpoint
//! and panic at each request, or as a Region or a profile.

use std::env;

use aws_config::{
    BehaviorVersion, SdkConfig, imds::region::ImdsRegionProvider, meta::region::RegionProviderChain,
    profile::ProfileFileRegionProvider,
};
use aws_sdk_dynamodb::config::{self, Region};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_types::service_config::ServiceConfigKey;

use crate::error::{Error, ErrorKind};

/// The variables that name the Region, in the order in which the SDK tries them.
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
/// The variables that name the endpoint, in the order in which the SDK tries them.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"];
const PROFILE: &str = "AWS_PROFILE";
/// The profile that the SDK uses if none is named.
const DEFAULT_PROFILE: &str = "default";

/// Loads the configuration. `region` and `endpoint_url` come before the environment's.
pub(super) async fn load(region: Option<&str>, endpoint_url: Option<&str>) -> Result<config::Builder, Error> {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    let mut profile = ProfileFileRegionProvider::builder();
    if is_empty(PROFILE) {
        loader = loader.profile_name(DEFAULT_PROFILE);
        profile = profile.profile_name(DEFAULT_PROFILE);
    }
    let region = region.map(str::to_owned).or_else(|| REGIONS.into_iter().find_map(variable));
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    } else if REGIONS.into_iter().any(is_empty) {
        // The SDK's own order, without the variables.
        let instance = ImdsRegionProvider::builder().build();
        loader = loader.region(RegionProviderChain::first_try(profile.build()).or_else(instance));
    }
    if let Some(endpoint_url) = endpoint_url {
        loader = loader.endpoint_url(endpoint_url);
    }
    let loaded = loader.load().await;
    if loaded.region().is_none() {
        return Err(invalid(
            "no AWS Region is known; set AWS_REGION, or pass the Region to the store's builder or with --region"
                .to_owned(),
        ));
    }
    let mut builder = config::Builder::from(&loaded);
    if endpoint_url.is_none() {
        let endpoint = endpoint(&loaded);
        if let Some((source, url)) = &endpoint {
            check_endpoint(source, url)?;
        }
        builder.set_endpoint_url(endpoint.map(|(_, url)| url));
    }
    Ok(builder)
}

/// Returns the endpoint that the environment or the profile names, and where it's named.
fn endpoint(loaded: &SdkConfig) -> Option<(&'static str, String)> {
    const IN_PROFILE: &str = "endpoint_url in the AWS profile";
    let configured = |variable: &str| {
        let key = ServiceConfigKey::builder().service_id("DynamoDB").env(variable).profile("endpoint_url");
        loaded.service_config()?.load_config(key.build().ok()?)
    };
    // The variables come before the profile. Neither counts if AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set.
    configured(ENDPOINTS[1])?;
    let named = ENDPOINTS.into_iter().find_map(|name| Some((name, variable(name)?)));
    // A variable that doesn't exist leaves only the profile.
    let in_profile = || configured("IDEMPOTENCY_NO_ENDPOINT").filter(|url| !url.is_empty());
    named.or_else(|| Some((IN_PROFILE, in_profile()?)))
}

/// Checks that `url`, which `source` names, is one that the client can send requests to. An error doesn't show the URL,
/// since it may have a password.
pub(super) fn check_endpoint(source: &str, url: &str) -> Result<(), Error> {
    let authority = ["http://", "https://"].into_iter().find_map(|scheme| {
        let (start, rest) = url.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then(|| rest.split(['/', '?', '#']).next().unwrap_or_default())
    });
    let is_valid = authority.is_some_and(|authority| {
        let host = authority.rsplit('@').next().unwrap_or_default();
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        !name.is_empty()
            && port.is_none_or(|port| port.parse::<u16>().is_ok())
            && HttpRequest::empty().set_uri(url).is_ok()
    });
    if is_valid {
        return Ok(());
    }
    Err(invalid(format!(
        "{source} isn't the URL of an endpoint; write http://HOST:PORT or https://HOST, or leave it out"
    )))
}

/// Returns the variable's value; `None` if the variable is unset or empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether the variable is set to nothing.
fn is_empty(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value.is_empty())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_need_scheme_and_host() {
        for url in [
            "http://localhost:8000",
            "https://dynamodb.eu-west-1.amazonaws.com",
            "HTTP://h",
            "http://[::1]:8000/",
            "http://[::1]",
            "http://user:password@localhost:8000/path?token=token",
        ] {
            assert!(check_endpoint("X", url).is_ok(), "{url}");
        }
        for url in [
            "",
            " ",
            "localhost",
            "localhost:8000",
            "//localhost:8000",
            "ftp://h",
            "http:/h",
            "http://",
            "http://:8000",
            "http:///path",
            "http://h:port",
            "http://h:70000",
            "http://a host:8000",
            "http://h\n",
            " http://h",
        ] {
            let error = check_endpoint("AWS_ENDPOINT_URL", url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().starts_with("AWS_ENDPOINT_URL isn't"), "{url}: {error}");
        }
    }
}
