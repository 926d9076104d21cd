//! The URL of a table.

use super::{DynamoDbBuilder, DynamoDbStore};
use crate::{
    error::{Error, ErrorKind},
    store::toolkit::{FromUrl, decoded},
};

impl FromUrl for DynamoDbStore {
    fn from_url(what: &str, url: &str) -> Result<DynamoDbBuilder, Error> {
        let rest = url.split_once(':').and_then(|(_, rest)| rest.strip_prefix("//")).unwrap_or_default();
        let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err(invalid(format!("{what} doesn't name a table; use dynamodb://TABLE")));
        }
        query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .try_fold(Self::builder(name), |builder, pair| set(builder, what, pair))
    }

    async fn open(builder: DynamoDbBuilder) -> Result<Self, Error> {
        builder.build_at_once().await
    }

    /// Always: a table's URL has no password, and `from_url` refuses unknown parameters.
    fn has_at_in_parameter(_: DynamoDbBuilder) -> bool {
        true
    }
}

/// Applies `pair`, a parameter `NAME=VALUE` of a URL, to the builder. Errors call the URL `what`.
fn set(builder: DynamoDbBuilder, what: &str, pair: &str) -> Result<DynamoDbBuilder, Error> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let value = || match value {
        "" => Err(invalid(format!("{what} has the parameter {name:?} without a value"))),
        value => decoded(name, value),
    };
    match name {
        "endpoint" => Ok(builder.endpoint_url(value()?)),
        "region" => Ok(builder.region(value()?)),
        "sort_key" => Ok(builder.sort_key(value()?)),
        "partition" => Ok(builder.partition(value()?)),
        "attributes" => builder.attributes(value()?),
        _ => Err(invalid(format!(
            "{what} has the unknown parameter {name:?}; use endpoint, region, sort_key, partition or attributes"
        ))),
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_configure_the_table() {
        let expected = DynamoDbStore::builder("t")
            .endpoint_url("http://127.0.0.1:8000")
            .region("eu-west-1")
            .sort_key("sk")
            .partition("a/b+é")
            .attributes("id:pk,owner:o")
            .unwrap();
        for url in [
            "dynamodb://t?endpoint=http://127.0.0.1:8000&region=eu-west-1&sort_key=sk&partition=a/b+é\
             &attributes=id:pk,owner:o",
            "dynamodb://t?endpoint=http%3A%2F%2F127.0.0.1%3A8000&region=eu%2dwest-1&sort_key=s%6B\
             &partition=a%2Fb%2B%C3%A9&attributes=id%3Apk%2Cowner%3Ao",
        ] {
            let builder = DynamoDbStore::from_url("the URL", url).unwrap();
            assert_eq!(format!("{builder:?}"), format!("{expected:?}"), "{url}");
        }
    }

    #[test]
    fn errors_name_the_invalid_parameter() {
        for (url, says) in [
            ("dynamodb://", "name a table"),
            ("dynamodb:secret", "name a table"),
            ("dynamodb:secret://t", "name a table"),
            ("dynamodb://t?colour=red", "unknown parameter \"colour\""),
            ("dynamodb://t?colour", "unknown parameter \"colour\""),
            ("dynamodb://t?region=", "region"),
            ("dynamodb://t?endpoint=secret%zz", "`endpoint` has a `%` without"),
            ("dynamodb://t?partition=secret%f", "`partition` has a `%` without"),
            ("dynamodb://t?sort_key=secret%ff", "`sort_key` isn't UTF-8"),
        ] {
            let error = DynamoDbStore::from_url("the URL", url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
