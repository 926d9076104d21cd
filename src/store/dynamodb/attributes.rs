//! The attributes of an item: their purpose, and their names in this table.

use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// DynamoDB's limit for the name of a key attribute, in bytes ("Quotas and limits", DynamoDB developer guide). This
/// store applies the limit to all attributes. DynamoDB allows longer names for the others, but every item stores its
/// attribute names, and DynamoDB bills each byte of them.
const MAX_NAME_BYTES: usize = 255;

/// The names of an item's attributes in this table, by [`Attribute`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttributeNames([String; Attribute::ALL.len()]);

impl Default for AttributeNames {
    fn default() -> Self {
        Self(Attribute::ALL.map(|attribute| attribute.as_str().to_owned()))
    }
}

impl FromStr for AttributeNames {
    type Err = Error;

    /// Parses comma-separated `attribute:name` pairs. An attribute that isn't listed keeps its default name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an unknown attribute, or a pair without a name.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut names = Self::default();
        for pair in text.split(',') {
            let (what, name) = pair.split_once(':').unwrap_or((pair, ""));
            let attribute = Attribute::ALL.into_iter().find(|attribute| attribute.as_str() == what);
            match attribute {
                Some(attribute) if !name.is_empty() => *names.of_mut(attribute) = name.to_owned(),
                Some(_) => return invalid(format!("the attribute `{what}` has no name; write {what}:NAME")),
                None => {
                    let known = Attribute::ALL.map(Attribute::as_str).join(", ");
                    return invalid(format!("there is no attribute {what:?}; the attributes are {known}"));
                }
            }
        }
        Ok(names)
    }
}

fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl AttributeNames {
    /// The name of `attribute` in this table.
    pub(super) fn of(&self, attribute: Attribute) -> &str {
        &self.0[attribute as usize]
    }

    fn of_mut(&mut self, attribute: Attribute) -> &mut String {
        &mut self.0[attribute as usize]
    }

    /// Rejects names that DynamoDB would reject, and two attributes with one name: the second would silently
    /// overwrite the first.
    pub(super) fn check(&self, sort_key: Option<&str>) -> Result<(), Error> {
        let mut named: Vec<(&str, &str)> =
            Attribute::ALL.iter().map(|attribute| (attribute.as_str(), self.of(*attribute))).collect();
        named.extend(sort_key.map(|name| ("sort key", name)));
        for (at, (what, name)) in named.iter().enumerate() {
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                return invalid(format!(
                    "the attribute name for `{what}` has {} bytes; give it 1 to {MAX_NAME_BYTES}",
                    name.len()
                ));
            }
            if let Some((other, _)) = named[..at].iter().find(|(_, taken)| taken == name) {
                return invalid(format!(
                    "`{other}` and `{what}` have the same attribute name `{name}`; give each its own"
                ));
            }
        }
        Ok(())
    }
}

/// Declares [`Attribute`] from the list of attributes and their default names.
macro_rules! attributes {
    ($($(#[$doc:meta])* $attribute:ident = $name:literal, $short:literal;)+) => {
        /// An attribute, identified by its purpose instead of its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Attribute {
            $($(#[$doc])* $attribute,)+
        }

        impl Attribute {
            pub(super) const ALL: [Self; [$($name),+].len()] = [$(Self::$attribute),+];

            /// The default name.
            pub(super) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$attribute => $name,)+
                }
            }

            /// The placeholder of the name.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$attribute => concat!("#", $short),)+
                }
            }

            /// The placeholder of the value to write.
            pub(super) const fn to_set(self) -> &'static str {
                match self {
                    $(Self::$attribute => concat!(":", $short),)+
                }
            }

            /// The placeholder of the value in the version that was seen.
            pub(super) const fn as_seen(self) -> &'static str {
                match self {
                    $(Self::$attribute => concat!(":v", $short),)+
                }
            }
        }
    };
}

attributes! {
    /// The partition key: the stored key.
    Id = "id", "k";
    Status = "status", "s";
    Owner = "owner", "o";
    Generation = "generation", "g";
    /// When the claim was made, in ms.
    LockAcquiredAt = "lock_acquired_at", "a";
    /// When the lease ends, in ms.
    LeaseUntil = "lease_until", "l";
    /// When the record expires, in seconds: the table's TTL attribute.
    ExpiresAt = "expires_at", "x";
    Fingerprint = "fingerprint", "f";
    /// How many claims the operation has had.
    Attempt = "attempt", "n";
    /// Whether an earlier attempt was interrupted.
    Interrupted = "interrupted", "i";
    /// The stored bytes of the response.
    Response = "response", "r";
    /// How the stored bytes encode the response, and how many chunks hold them.
    ResponseEncoding = "response_encoding", "re";
    ResponseLength = "response_length", "rl";
    ResponseSha256 = "response_sha256", "rd";
    /// The invocation that made the claim.
    RequestId = "request_id", "q";
    /// The version of the record format.
    Version = "version", "z";
    /// Reserved for the trace of the first run. No version writes it yet.
    TraceId = "trace_id", "t";
    /// Reserved: marks a response stored in a form that this version can't read. No version writes it yet.
    ResponseCodec = "response_codec", "rc";
    /// Reserved: names the key that the response is encrypted with. No version writes it yet.
    ResponseKeyId = "response_key_id", "rk";
}

impl Attribute {
    /// Whether a settlement can change the attribute although the condition doesn't compare it.
    pub(super) const fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Interrupted
                | Self::ResponseEncoding
                | Self::ResponseLength
                | Self::ResponseSha256
                | Self::Response
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_attribute_names_are_distinct() {
        let names = AttributeNames::default();
        for attribute in Attribute::ALL {
            assert_eq!(names.of(attribute), attribute.as_str());
        }
        names.check(None).unwrap();
        names.check(Some("sk")).unwrap();
    }

    #[test]
    fn attribute_names_are_parsed_from_pairs() {
        for attribute in Attribute::ALL {
            let mut expected = AttributeNames::default();
            *expected.of_mut(attribute) = "a.b".into();
            assert_eq!(format!("{}:a.b", attribute.as_str()).parse::<AttributeNames>().unwrap(), expected);
        }
        for (text, says) in [
            ("", "no attribute"),
            ("colour:x", "\"colour\""),
            ("id", "write id:NAME"),
            ("id:pk,", "no attribute"),
        ] {
            let error = text.parse::<AttributeNames>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn invalid_attribute_names_are_refused() {
        let with = |attribute, name: &str| {
            let mut names = AttributeNames::default();
            name.clone_into(names.of_mut(attribute));
            names
        };
        let twice = with(Attribute::Owner, "status");
        let error = twice.check(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            "`status` and `owner` have the same attribute name `status`; give each its own"
        );
        assert!(AttributeNames::default().check(Some("id")).unwrap_err().to_string().contains("sort key"));
        assert!(AttributeNames::default().check(Some("version")).is_err());
        assert!(AttributeNames::default().check(Some("trace_id")).is_err(), "a reserved name is refused");
        assert!(AttributeNames::default().check(Some("")).is_err());
        let empty = with(Attribute::Status, "");
        assert!(empty.check(None).unwrap_err().to_string().contains("`status` has 0 bytes"));
        let long = with(Attribute::Status, &"x".repeat(256));
        assert!(long.check(None).is_err());
    }

    #[test]
    fn longest_attribute_name_is_allowed() {
        let names = AttributeNames::default();
        names.check(Some(&"s".repeat(MAX_NAME_BYTES))).unwrap();
        names.check(Some(&"s".repeat(MAX_NAME_BYTES + 1))).unwrap_err();
    }
}
