//! Numbers that JSON can't represent: NaN and the infinities.
//!
//! `serde_json` writes them as `null`, so two different payloads would match, and a recorded result wouldn't
//! read back. The text doesn't show whether a `null` was such a number. So if a value's text contains `null`,
//! [`to_json`] serialises the value once more, only to check its numbers.

use std::fmt;

use serde::{
    Serialize,
    ser::{self, Serializer},
};

/// Serialises `value` as JSON.
///
/// # Errors
///
/// If `value` can't be serialised, or holds a number that isn't finite. The serialiser's error isn't
/// included, because a user's `Serialize` may put the payload into it.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Unwritable> {
    let text = serde_json::to_string(value).map_err(|_| Unwritable::Type)?;
    if text.contains("null") && value.serialize(Walk) == Err(NotFinite::Found) {
        return Err(Unwritable::NotFinite);
    }
    Ok(text)
}

/// Why a value has no JSON text that reads back as the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The value's type can't be serialised as JSON.
    Type,
    /// The value has NaN or an infinity.
    NotFinite,
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type => "its type can't be serialised as JSON",
            Self::NotFinite => "it holds a number that isn't finite, which JSON can't express",
        })
    }
}

/// A serializer that visits every number and writes nothing.
#[derive(Clone, Copy)]
struct Walk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotFinite {
    /// The value has a number that isn't finite.
    Found,
    /// The value's `Serialize` failed this time, although it succeeded when it wrote the text.
    Other,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not finite")
    }
}

impl std::error::Error for NotFinite {}

impl ser::Error for NotFinite {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

macro_rules! has_none {
    ($($method:ident($($value:ty),*))*) => {
        $(fn $method(self $(, _: $value)*) -> Result<(), NotFinite> { Ok(()) })*
    };
}

macro_rules! is_compound {
    ($($method:ident($($argument:ty),*))*) => {
        $(fn $method(self $(, _: $argument)*) -> Result<Self, NotFinite> { Ok(self) })*
    };
}

impl Serializer for Walk {
    type Ok = ();
    type Error = NotFinite;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    has_none! {
        serialize_bool(bool)
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128)
        serialize_char(char) serialize_str(&str) serialize_bytes(&[u8])
        serialize_none() serialize_unit() serialize_unit_struct(&'static str)
        serialize_unit_variant(&'static str, u32, &'static str)
    }

    is_compound! {
        serialize_seq(Option<usize>)
        serialize_tuple(usize)
        serialize_tuple_struct(&'static str, usize)
        serialize_tuple_variant(&'static str, u32, &'static str, usize)
        serialize_map(Option<usize>)
        serialize_struct(&'static str, usize)
        serialize_struct_variant(&'static str, u32, &'static str, usize)
    }

    fn serialize_f32(self, value: f32) -> Result<(), NotFinite> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), NotFinite> {
        if value.is_finite() { Ok(()) } else { Err(NotFinite::Found) }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), NotFinite> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), NotFinite> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), NotFinite> {
        value.serialize(self)
    }
}

macro_rules! walks {
    ($($kind:ident :: $method:ident($($name:ty)?))*) => {
        $(impl ser::$kind for Walk {
            type Ok = ();
            type Error = NotFinite;

            fn $method<T: Serialize + ?Sized>(&mut self $(, _: $name)?, value: &T) -> Result<(), NotFinite> {
                value.serialize(*self)
            }

            fn end(self) -> Result<(), NotFinite> {
                Ok(())
            }
        })*
    };
}

walks! {
    SerializeSeq::serialize_element()
    SerializeTuple::serialize_element()
    SerializeTupleStruct::serialize_field()
    SerializeTupleVariant::serialize_field()
    SerializeStruct::serialize_field(&'static str)
    SerializeStructVariant::serialize_field(&'static str)
}

impl ser::SerializeMap for Walk {
    type Ok = ();
    type Error = NotFinite;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NotFinite> {
        key.serialize(*self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotFinite> {
        value.serialize(*self)
    }

    fn end(self) -> Result<(), NotFinite> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct Wrapped(f64);

    #[derive(Serialize)]
    enum Shape {
        One(f32),
        Two(f64, Option<u8>),
        Named { length: f64 },
    }

    #[derive(Serialize)]
    struct Nested {
        nothing: Option<u8>,
        shapes: Vec<Shape>,
        by_name: BTreeMap<String, Option<Wrapped>>,
        pair: (u8, f64),
    }

    fn nested(numbers: [f64; 5]) -> Nested {
        let [one, two, length, wrapped, last] = numbers;
        #[expect(clippy::cast_possible_truncation, reason = "1, NaN and the infinities fit into an f32")]
        let one = one as f32;
        Nested {
            nothing: None,
            shapes: vec![Shape::One(one), Shape::Two(two, None), Shape::Named { length }],
            by_name: BTreeMap::from([("a".to_owned(), Some(Wrapped(wrapped))), ("b".to_owned(), None)]),
            pair: (1, last),
        }
    }

    #[test]
    fn non_finite_numbers_are_found() {
        assert!(to_json(&nested([1.0, -0.0, f64::MAX, f64::MIN_POSITIVE, 5e-324])).is_ok());
        for place in 0..5 {
            for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut numbers = [1.0; 5];
                numbers[place] = number;
                assert_eq!(to_json(&nested(numbers)), Err(Unwritable::NotFinite), "{place}: {number}");
            }
        }
        assert_eq!(to_json(&Some(f64::NAN)), Err(Unwritable::NotFinite));
        assert_eq!(to_json(&None::<f64>).unwrap(), "null");
        assert_eq!(to_json("null").unwrap(), "\"null\"");
        assert_eq!(to_json(&BTreeMap::from([((1, 2), 3)])), Err(Unwritable::Type));
    }
}
