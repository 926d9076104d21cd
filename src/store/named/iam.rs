//! The parameter `iam` of a store's URL: passwords of IAM authentication, which the function's role signs.
//!
//! Each new connection gets a new token, which is valid for 15 minutes. Signing needs no request.

use std::{borrow::Cow, error::Error as StdError, sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::{Credentials, provider::ProvideCredentials as _};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use aws_smithy_types::DateTime;
use tokio::sync::OnceCell;

use super::invalid;
#[cfg(feature = "dynamodb")]
use crate::store::dynamodb::DynamoDbStore;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;
use crate::{
    error::Error,
    store::{
        StoreBuilder,
        toolkit::{Configured, decoded},
    },
    time::{Clock as _, Timestamp, system_clock},
};

/// How long a token is valid: the longest time that AWS allows ("Connecting to your DB instance using IAM authentication",
/// Amazon RDS user guide; "Authenticating with IAM", ElastiCache and MemoryDB developer guides).
const VALID_FOR: Duration = Duration::from_secs(900);

const VALUES: &str = "use iam=rds for PostgreSQL, and iam=elasticache:NAME, iam=elasticache-serverless:NAME or iam=memorydb:NAME \
                      for Redis";

const PLAIN: &str = "whose token mustn't be sent in plaintext: use TLS (rediss://, or sslmode=require)";
const ONE_HOST: &str =
    "so it needs one host in front of its path, with the port if it isn't 5432: the token has both";
const NO_PASSWORD: &str =
    "so it needs a user name in front of its host, and no password: the role's token is the password";

/// Who signs in where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignIn {
    user: String,
    /// The service's name in a signature.
    service: &'static str,
    /// The host in the token: for RDS, the server's with its port, and for the others the cache's or cluster's name.
    host: String,
    is_serverless: bool,
}

/// Takes the parameter `iam` out of a store's URL, with the user for a store on Redis, whose URL can't have a user alone.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if its value or the rest of the URL doesn't fit. No message contains a
/// password.
pub(super) fn taken<'u>(what: &str, url: &'u str) -> Result<(Cow<'u, str>, Option<SignIn>), Error> {
    let Some((base, query)) = url.split_once('?') else { return Ok((url.into(), None)) };
    let is_iam = |pair: &&str| pair.split('=').next() == Some("iam");
    let Some(found) = query.split('&').find(is_iam) else { return Ok((url.into(), None)) };
    let wrong = |why: &str| invalid(format!("{what} has the parameter iam, {why}"));
    let value = decoded("iam", found.split_once('=').map_or("", |(_, value)| value))?;
    let (service, name) = value.split_once(':').unwrap_or((&value, ""));
    let (scheme, rest) = base.split_once("://").unwrap_or_default();
    let (service, is_postgres, is_serverless) = match service {
        "rds" => ("rds-db", true, false),
        "elasticache" => ("elasticache", false, false),
        "elasticache-serverless" => ("elasticache", false, true),
        "memorydb" => ("memorydb", false, false),
        _ => return Err(wrong(&format!("whose value is unknown; {VALUES}"))),
    };
    if is_postgres != scheme.starts_with("postgres") || is_postgres != name.is_empty() {
        return Err(wrong(&format!("whose value doesn't fit; {VALUES}")));
    }
    let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    if user.is_empty() || user.contains(':') {
        return Err(wrong(NO_PASSWORD));
    }
    let mut others: Vec<_> = query.split('&').filter(|pair| !is_iam(pair)).collect();
    let is_plain = matches!(scheme, "redis" | "valkey" | "redis-cluster" | "valkey-cluster");
    if is_plain {
        return Err(wrong(PLAIN));
    }
    let host = if is_postgres {
        match unfit(&others)? {
            Some(why) => return Err(wrong(why)),
            // By default, a server on loopback, such as the end of a tunnel, gets a connection without TLS.
            None if !others.iter().any(|pair| pair.starts_with("sslmode=")) => others.push("sslmode=require"),
            None => {}
        }
        server(place.split('/').next().unwrap_or_default()).ok_or_else(|| wrong(ONE_HOST))?
    } else {
        name.to_owned()
    };
    let mark = if others.is_empty() { "" } else { "?" };
    let credentials = if is_postgres { format!("{user}@") } else { String::new() };
    let rest = format!("{scheme}://{credentials}{place}{mark}{}", others.join("&"));
    Ok((rest.into(), Some(SignIn { user: decoded("user", user)?, service, host, is_serverless })))
}

/// Says why parameters of a PostgreSQL URL don't fit a token.
fn unfit(parameters: &[&str]) -> Result<Option<&'static str>, Error> {
    for pair in parameters {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match &*decoded("a parameter's name", name)? {
            "host" | "hostaddr" | "port" => return Ok(Some(ONE_HOST)),
            "user" | "password" => return Ok(Some(NO_PASSWORD)),
            "sslmode" if !matches!(&*decoded(name, value)?, "require" | "verify-ca" | "verify-full") => {
                return Ok(Some(PLAIN));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the server's host with its port, as the token names it. `None` if it isn't one host.
fn server(host: &str) -> Option<String> {
    // The colons of an IPv6 address are in brackets.
    let (name, port) =
        host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).unwrap_or((host, "5432"));
    let is_one = !name.is_empty() && !name.contains([',', '%']) && port.parse::<u16>().is_ok();
    is_one.then(|| format!("{name}:{port}"))
}

/// A store whose builder can get its passwords from IAM.
#[allow(dead_code, reason = "unused if the features of all stores are off")]
pub(super) trait SignedIn: Configured {
    /// Sets the code that returns passwords.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the store has no passwords.
    fn signed_in(builder: StoreBuilder<Self>, as_user: SignIn) -> Result<StoreBuilder<Self>, Error>;
}

#[cfg(feature = "dynamodb")]
impl SignedIn for DynamoDbStore {
    fn signed_in(_: StoreBuilder<Self>, _: SignIn) -> Result<StoreBuilder<Self>, Error> {
        Err(invalid("a DynamoDB table always uses IAM; leave out the parameter iam"))
    }
}

#[cfg(feature = "postgres")]
impl SignedIn for PostgresStore {
    fn signed_in(builder: StoreBuilder<Self>, as_user: SignIn) -> Result<StoreBuilder<Self>, Error> {
        Ok(builder.password_from(as_user.passwords()))
    }
}

#[cfg(feature = "redis")]
impl SignedIn for RedisStore {
    fn signed_in(builder: StoreBuilder<Self>, as_user: SignIn) -> Result<StoreBuilder<Self>, Error> {
        Ok(builder.password_from(as_user.user.clone(), as_user.passwords()))
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl SignIn {
    /// Returns code that signs a token with the environment's credentials and Region, which it loads at the first call.
    #[allow(dead_code, reason = "unused if the features of both stores are off")]
    fn passwords(
        self,
    ) -> impl Fn() -> crate::store::BoxFuture<'static, Result<String, BoxError>> + Send + Sync + 'static {
        let shared = Arc::new((self, OnceCell::<SdkConfig>::new()));
        move || {
            let shared = Arc::clone(&shared);
            Box::pin(async move {
                let (sign_in, config) = &*shared;
                let loaded = || async { aws_config::defaults(BehaviorVersion::latest()).load().await };
                let config = config.get_or_init(loaded).await;
                let region = config.region().ok_or("no AWS Region is known; set AWS_REGION")?;
                let provider = config.credentials_provider().ok_or("there are no AWS credentials")?;
                let credentials = provider.provide_credentials().await?;
                sign_in.token(credentials, region.as_ref(), system_clock().now())
            })
        }
    }

    /// Signs a token.
    fn token(&self, credentials: Credentials, region: &str, now: Timestamp) -> Result<String, BoxError> {
        let millis = i64::try_from(now.as_millis())?;
        let mut settings = SigningSettings::default();
        settings.expires_in = Some(VALID_FOR);
        settings.signature_location = SignatureLocation::QueryParams;
        let identity = credentials.into();
        let parameters = v4::SigningParams::builder().identity(&identity).region(region).name(self.service);
        let parameters =
            parameters.time(DateTime::from_millis(millis).try_into()?).settings(settings).build()?;
        let user = if self.service == "rds-db" { "DBUser" } else { "User" };
        let more = if self.is_serverless { "&ResourceType=ServerlessCache" } else { "" };
        let token = format!("{}/?Action=connect&{user}={}{more}", self.host, escaped(&self.user));
        let url = format!("https://{token}");
        let request = SignableRequest::new("GET", url, std::iter::empty(), SignableBody::Bytes(&[]))?;
        let (signed, _) = sign(request, &parameters.into())?.into_parts();
        let signed = signed.params().iter().map(|(name, value)| format!("&{name}={}", escaped(value)));
        Ok(token + &signed.collect::<String>())
    }
}

/// Percent-encodes all but the unreserved characters of RFC 3986, as a signature needs it.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign_in(url: &str) -> Result<(String, SignIn), String> {
        let taken = taken("the URL", url).map_err(|error| error.to_string())?;
        Ok((taken.0.into_owned(), taken.1.unwrap()))
    }

    /// The tokens that botocore 1.44.8 signs at this time, with the same credentials.
    #[test]
    fn tokens_equal_botocores() {
        const DATE: &str = "X-Amz-Date=20240826T220000Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host";
        const BEGIN: &str =
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=akid%2F20240826%2Fus-east-1%2F";
        for (url, session, begin, service, end) in [
            (
                "postgres://peccy@prod-instance.us-east-1.rds.amazonaws.com:3306/shop?iam=rds",
                None,
                "prod-instance.us-east-1.rds.amazonaws.com:3306/?Action=connect&DBUser=peccy",
                "rds-db",
                "X-Amz-Signature=949ae8e7344ace63ec4541b055c19228e49859af7a5b2a9803a2063859b7bbd7",
            ),
            (
                "rediss://app@cache.internal:6379?iam=elasticache:orders-cache",
                None,
                "orders-cache/?Action=connect&User=app",
                "elasticache",
                "X-Amz-Signature=b53f22c13204dac514472d614f666a5b5f66c603237515766bacb8529609b5d9",
            ),
            (
                "rediss-cluster://app@cache.internal?iam=elasticache-serverless:orders-cache",
                Some("session/token=="),
                "orders-cache/?Action=connect&User=app&ResourceType=ServerlessCache",
                "elasticache",
                "X-Amz-Security-Token=session%2Ftoken%3D%3D&X-Amz-Signature=2351ea45fade5c495485fd9e6bd6f419e58648d3162dee24562bb9dfa369eebf",
            ),
            (
                "valkeys://app@cache.internal?iam=memorydb:orders-cluster",
                None,
                "orders-cluster/?Action=connect&User=app",
                "memorydb",
                "X-Amz-Signature=da33e2cbaf7bb09e6def2fb4e233bdacdb42bc8568b1ca6a411c75857254c007",
            ),
        ] {
            let (_, sign_in) = sign_in(url).unwrap();
            let session = session.map(str::to_owned);
            let credentials = Credentials::new("akid", "secret_access_key", session, None, "test");
            let now = Timestamp::from_secs(1_724_709_600);
            let token = sign_in.token(credentials, "us-east-1", now).unwrap();
            let sorted = |token: &str| {
                let mut parts: Vec<_> = token.split('&').map(str::to_owned).collect();
                parts.sort();
                parts
            };
            let expected = format!("{begin}&{BEGIN}{service}%2Faws4_request&{DATE}&{end}");
            assert_eq!(sorted(&token), sorted(&expected), "{url}");
        }
    }

    #[test]
    fn only_fitting_urls_are_signed_in() {
        let (rest, of_user) =
            sign_in("postgres://us%40er@db.internal/shop?table=t&iam=rds&sslmode=require").unwrap();
        assert_eq!(rest, "postgres://us%40er@db.internal/shop?table=t&sslmode=require");
        assert_eq!((of_user.user.as_str(), of_user.host.as_str()), ("us@er", "db.internal:5432"));
        for (url, rest, host) in [
            ("postgres://a@h:6/d?iam=rds", "postgres://a@h:6/d?sslmode=require", "h:6"),
            ("postgres://a@[::1]/d?iam=rds", "postgres://a@[::1]/d?sslmode=require", "[::1]:5432"),
            (
                "postgres://a@[::1]:6?iam=rds&sslmode=verify%2Dfull",
                "postgres://a@[::1]:6?sslmode=verify%2Dfull",
                "[::1]:6",
            ),
        ] {
            let signed = sign_in(url).unwrap();
            assert_eq!((signed.0.as_str(), signed.1.host.as_str()), (rest, host), "{url}");
        }
        let (rest, _) = sign_in("rediss://app@cache?iam=memorydb:c&prefix=p").unwrap();
        assert_eq!(rest, "rediss://cache?prefix=p");
        for plain in ["memory:", "redis://h", "postgres://u:p@h/d?table=iam", "dynamodb://t?region=iam"] {
            assert_eq!(taken("the URL", plain).unwrap(), (plain.into(), None));
        }
        for (url, why) in [
            ("postgres://app@h/d?iam=", "unknown"),
            ("postgres://app@h/d?iam=aurora", "unknown"),
            ("postgres://app@h/d?iam=elasticache:c", "doesn't fit"),
            ("rediss://app@h?iam=rds", "doesn't fit"),
            ("rediss://app@h?iam=memorydb", "doesn't fit"),
            ("postgres://h/d?iam=rds", "needs a user name"),
            ("postgres://app:secret@h/d?iam=rds", "no password"),
            ("postgres://app@h,i/d?iam=rds", "one host"),
            ("postgres://app@h:6,i/d?iam=rds", "one host"),
            ("postgres://app@[::1]:6,i/d?iam=rds", "one host"),
            ("postgres://app@h%2Ci/d?iam=rds", "one host"),
            ("postgres://app@/d?iam=rds", "one host"),
            ("postgres://app@/d?host=h&iam=rds", "one host"),
            ("postgres://app@h/d?port=6&iam=rds", "one host"),
            ("postgres://app@h/d?h%6fst=i&iam=rds", "one host"),
            ("postgres://app@h/d?user=other&iam=rds", "no password"),
            ("postgres://app@h/d?iam=rds&sslmode=disable", "plaintext"),
            ("postgres://app@h/d?iam=rds&sslmode=prefer", "plaintext"),
            ("postgres://app@h/d?iam=rds&sslmode=d%69sable", "plaintext"),
            ("postgres://app@h/d?iam=rds&s%73lmode=disable", "plaintext"),
            ("redis://app@h?iam=memorydb:c", "plaintext"),
        ] {
            let error = sign_in(url).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
        }
    }

    /// The whole way from a URL to a store.
    #[cfg(all(feature = "dynamodb", feature = "postgres", feature = "redis"))]
    #[tokio::test]
    async fn stores_open_by_urls_with_iam() {
        use crate::store::NamedStore;
        for url in
            ["postgres://app@db.internal/shop?iam=rds", "rediss://app@cache.internal?iam=elasticache:orders"]
        {
            let named = NamedStore::from_url(url).unwrap();
            assert!(named.open().await.is_ok(), "{url}");
            assert!(NamedStore::without_credentials(url).unwrap().contains("iam="), "{url}");
        }
        let error = NamedStore::from_url("dynamodb://orders?iam=rds").unwrap_err().to_string();
        assert!(error.contains("iam"), "{error}");
    }
}
