//! The names of an item's attributes in this table, and their placeholders in expressions.

use std::str::FromStr;

use crate::{
    error::{Error, ErrorKind},
    store::toolkit::Field,
};

/// DynamoDB's limit for the name of a key attribute, in bytes ("Quotas and limits", DynamoDB developer guide). This
/// store applies the limit to all attributes. DynamoDB allows longer names for the others, but every item stores its
/// attribute names, and DynamoDB bills each byte of them.
const MAX_NAME_BYTES: usize = 255;

/// The names of an item's attributes in this table, by [`Field`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttributeNames([String; Field::ALL.len()]);

impl Default for AttributeNames {
    fn default() -> Self {
        Self(Field::ALL.map(|field| field.name().to_owned()))
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
            let attribute = Field::ALL.into_iter().find(|attribute| attribute.name() == what);
            match attribute {
                Some(attribute) if !name.is_empty() => *names.of_mut(attribute) = name.to_owned(),
                Some(_) => return invalid(format!("the attribute `{what}` has no name; write {what}:NAME")),
                None => {
                    let known = Field::ALL.map(Field::name).join(", ");
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
    /// The name of `field` in this table.
    pub(super) fn of(&self, field: Field) -> &str {
        &self.0[field as usize]
    }

    fn of_mut(&mut self, field: Field) -> &mut String {
        &mut self.0[field as usize]
    }

    /// Rejects names that DynamoDB would reject, and two attributes with one name: the second would silently
    /// overwrite the first.
    pub(super) fn check(&self, sort_key: Option<&str>) -> Result<(), Error> {
        let mut named: Vec<(&str, &str)> =
            Field::ALL.iter().map(|attribute| (attribute.name(), self.of(*attribute))).collect();
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

/// Declares the placeholders of the fields' names and values, each from a short name.
macro_rules! placeholders {
    ($($field:ident = $short:literal;)+) => {
        /// The placeholder of the name.
        pub(super) const fn name_of(field: Field) -> &'static str {
            match field {
                $(Field::$field => concat!("#", $short),)+
            }
        }

        /// The placeholder of the value to write.
        pub(super) const fn to_set(field: Field) -> &'static str {
            match field {
                $(Field::$field => concat!(":", $short),)+
            }
        }

        /// The placeholder of the value in the version that was seen.
        pub(super) const fn as_seen(field: Field) -> &'static str {
            match field {
                $(Field::$field => concat!(":v", $short),)+
            }
        }
    };
}

placeholders! {
    Id = "k";
    Version = "z";
    Status = "s";
    Owner = "o";
    Generation = "g";
    Attempt = "n";
    Fingerprint = "f";
    ClaimedAt = "a";
    LeaseUntil = "l";
    ExpiresAt = "x";
    Mark = "m";
    Execution = "e";
    RequestId = "q";
    Trace = "t";
    Encoding = "c";
    Length = "b";
    Sha256 = "d";
    Response = "r";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_attribute_names_are_distinct() {
        let names = AttributeNames::default();
        for attribute in Field::ALL {
            assert_eq!(names.of(attribute), attribute.name());
        }
        names.check(None).unwrap();
        names.check(Some("sk")).unwrap();
    }

    #[test]
    fn attribute_names_are_parsed_from_pairs() {
        for attribute in Field::ALL {
            let mut expected = AttributeNames::default();
            *expected.of_mut(attribute) = "a.b".into();
            assert_eq!(format!("{}:a.b", attribute.name()).parse::<AttributeNames>().unwrap(), expected);
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
        let twice = with(Field::Owner, "status");
        let error = twice.check(None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            "`status` and `owner` have the same attribute name `status`; give each its own"
        );
        assert!(AttributeNames::default().check(Some("id")).unwrap_err().to_string().contains("sort key"));
        assert!(AttributeNames::default().check(Some("version")).is_err());
        assert!(AttributeNames::default().check(Some("trace")).is_err());
        assert!(AttributeNames::default().check(Some("")).is_err());
        let empty = with(Field::Status, "");
        assert!(empty.check(None).unwrap_err().to_string().contains("`status` has 0 bytes"));
        let long = with(Field::Status, &"x".repeat(256));
        assert!(long.check(None).is_err());
    }

    #[test]
    fn longest_attribute_name_is_allowed() {
        let names = AttributeNames::default();
        names.check(Some(&"s".repeat(MAX_NAME_BYTES))).unwrap();
        names.check(Some(&"s".repeat(MAX_NAME_BYTES + 1))).unwrap_err();
    }
}
