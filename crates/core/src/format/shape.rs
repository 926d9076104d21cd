//! Compares a result with what a duplicate reads, for debug builds and the testing kit.
//!
//! A result's type needs no `PartialEq`, and two different results may have the same JSON: `Some(())` and `None` are
//! both `null`. So this module compares the calls that `Serialize` makes, which distinguish them.

use std::fmt;

use serde::{Serialize, Serializer, ser};

/// What a value tells its serializer. The order of maps and sets, which changes between equal values, doesn't count, and
/// so the order of lists doesn't count either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    None,
    Some(Box<Self>),
    Unit,
    Bool(bool),
    Signed(i128),
    Unsigned(u128),
    /// The float's bits. All NaNs are equal.
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Struct(Vec<(&'static str, Self)>),
    /// A variant of an enum.
    Variant(&'static str, Box<Self>),
}

impl Shape {
    /// Returns the shape of `value`, or `None` if the value can't be serialised this way.
    fn of(value: &(impl Serialize + ?Sized)) -> Option<Self> {
        value.serialize(Observer).ok()
    }

    fn list(mut items: Vec<Self>) -> Self {
        items.sort();
        Self::List(items)
    }
}

/// Whether a duplicate reads a value that differs from `value`. If the difference isn't visible, returns `false`: a
/// skipped field, or variants of a nested untagged enum that look the same.
pub(super) fn differs<T: Serialize>(value: &T, read: &T) -> bool {
    if std::mem::discriminant(value) != std::mem::discriminant(read) {
        return true;
    }
    matches!((Shape::of(value), Shape::of(read)), (Some(value), Some(read)) if value != read)
}

/// Collects the types of results that read back differently, for the testing kit.
pub mod changed {
    use std::cell::RefCell;

    thread_local! {
        static CHANGED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes a type. It counts once.
    pub fn note(result_type: &'static str) {
        CHANGED.with_borrow_mut(|changed| {
            if !changed.contains(&result_type) {
                changed.push(result_type);
            }
        });
    }

    /// Returns the types that were noted in this thread since the last call.
    pub fn taken() -> Vec<&'static str> {
        CHANGED.take()
    }
}

/// A value that has no shape.
#[derive(Debug)]
struct NoShape;

impl fmt::Display for NoShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value can't be serialised")
    }
}

impl std::error::Error for NoShape {}

impl ser::Error for NoShape {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

type Observed = Result<Shape, NoShape>;

fn observed<T: Serialize + ?Sized>(value: &T) -> Observed {
    value.serialize(Observer)
}

/// Notes what a value tells it.
struct Observer;

/// Notes the parts of a value that has several.
#[derive(Default)]
struct Parts {
    variant: Option<&'static str>,
    items: Vec<Shape>,
    keys: Vec<Shape>,
    fields: Vec<(&'static str, Shape)>,
}

impl Parts {
    fn of(variant: Option<&'static str>) -> Self {
        Self { variant, ..Self::default() }
    }

    fn item(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), NoShape> {
        self.items.push(observed(value)?);
        Ok(())
    }

    fn field(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) -> Result<(), NoShape> {
        self.fields.push((name, observed(value)?));
        Ok(())
    }

    fn whole(self, shape: impl FnOnce(Self) -> Shape) -> Shape {
        match self.variant {
            Some(name) => Shape::Variant(name, Box::new(shape(self))),
            None => shape(self),
        }
    }
}

macro_rules! numbers {
    ($($method:ident($number:ty) => $shape:ident($wide:ty),)*) => {
        $(fn $method(self, value: $number) -> Observed {
            Ok(Shape::$shape(<$wide>::from(value)))
        })*
    };
}

impl Serializer for Observer {
    type Ok = Shape;
    type Error = NoShape;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    numbers! {
        serialize_bool(bool) => Bool(bool),
        serialize_i8(i8) => Signed(i128),
        serialize_i16(i16) => Signed(i128),
        serialize_i32(i32) => Signed(i128),
        serialize_i64(i64) => Signed(i128),
        serialize_i128(i128) => Signed(i128),
        serialize_u8(u8) => Unsigned(u128),
        serialize_u16(u16) => Unsigned(u128),
        serialize_u32(u32) => Unsigned(u128),
        serialize_u64(u64) => Unsigned(u128),
        serialize_u128(u128) => Unsigned(u128),
        serialize_char(char) => Text(String),
        serialize_str(&str) => Text(String),
    }

    fn serialize_f32(self, value: f32) -> Observed {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Observed {
        Ok(Shape::Float(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }))
    }

    fn serialize_bytes(self, value: &[u8]) -> Observed {
        Ok(Shape::Bytes(value.to_vec()))
    }

    fn serialize_none(self) -> Observed {
        Ok(Shape::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Observed {
        Ok(Shape::Some(Box::new(observed(value)?)))
    }

    fn serialize_unit(self) -> Observed {
        Ok(Shape::Unit)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Observed {
        Ok(Shape::Unit)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Observed {
        Ok(Shape::Variant(variant, Box::new(Shape::Unit)))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Observed {
        observed(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Observed {
        Ok(Shape::Variant(variant, Box::new(observed(value)?)))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts, NoShape> {
        Ok(Parts::default())
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts, NoShape> {
        Ok(Parts::default())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts, NoShape> {
        Ok(Parts::default())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, NoShape> {
        Ok(Parts::of(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts, NoShape> {
        Ok(Parts::default())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts, NoShape> {
        Ok(Parts::default())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, NoShape> {
        Ok(Parts::of(Some(variant)))
    }
}

macro_rules! parts {
    ($($trait:ident { $method:ident } => $shape:expr;)*) => {
        $(impl ser::$trait for Parts {
            type Ok = Shape;
            type Error = NoShape;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoShape> {
                self.item(value)
            }

            fn end(self) -> Observed {
                Ok(self.whole($shape))
            }
        })*
    };
}

// A tuple's items have their places, unlike a set's.
parts! {
    SerializeSeq { serialize_element } => |parts| Shape::list(parts.items);
    SerializeTuple { serialize_element } => |parts| Shape::List(parts.items);
    SerializeTupleStruct { serialize_field } => |parts| Shape::List(parts.items);
    SerializeTupleVariant { serialize_field } => |parts| Shape::List(parts.items);
}

impl ser::SerializeMap for Parts {
    type Ok = Shape;
    type Error = NoShape;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NoShape> {
        self.keys.push(observed(key)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NoShape> {
        self.item(value)
    }

    fn end(self) -> Observed {
        let mut entries: Vec<_> = self.keys.into_iter().zip(self.items).collect();
        entries.sort();
        Ok(Shape::Map(entries))
    }
}

macro_rules! fields {
    ($($trait:ident)*) => {
        $(impl ser::$trait for Parts {
            type Ok = Shape;
            type Error = NoShape;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), NoShape> {
                self.field(name, value)
            }

            fn end(self) -> Observed {
                Ok(self.whole(|parts| Shape::Struct(parts.fields)))
            }
        })*
    };
}

fields!(SerializeStruct SerializeStructVariant);

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use serde::Deserialize;

    use super::*;

    /// Whether `value` differs from what its JSON reads back as.
    fn changes<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> bool {
        let json = serde_json::to_string(value).unwrap();
        differs(value, &serde_json::from_str(&json).unwrap())
    }

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Order {
        Small { id: u32 },
        Big { id: u32, extra: u32 },
    }

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        First(u32),
        Second(u32),
    }

    #[derive(Serialize, Deserialize)]
    enum Tagged {
        Nothing,
        One(Option<u8>),
        Two(u8, u8),
        Named { id: u8 },
    }

    #[test]
    fn changed_values_are_seen() {
        assert!(changes(&Some(())));
        assert!(changes(&Some(None::<u8>)));
        assert!(changes(&vec![("a".to_owned(), Some(()))]));
        assert!(changes(&HashMap::from([("a".to_owned(), Some(None::<u8>))])));
        assert!(changes(&(1, [Some(())])));
        assert!(changes(&Ok::<Option<()>, ()>(Some(()))));
        assert!(changes(&Order::Big { id: 1, extra: 2 }));
        assert!(changes(&[Order::Big { id: 1, extra: 2 }]));
        assert!(changes(&Either::Second(1)));
        assert!(changes(&Some(serde_json::Value::Null)));
    }

    #[test]
    fn unchanged_values_are_equal() {
        assert!(!changes(&None::<()>));
        assert!(!changes(&()));
        assert!(!changes(&Some(Some(7))));
        assert!(!changes(&(1.5, -0.0, f32::MAX, i128::MIN, 'x', "text".to_owned(), true)));
        assert!(!changes(&Order::Small { id: 1 }));
        assert!(!changes(&Either::First(1)));
        assert!(!changes(&[Tagged::Nothing, Tagged::One(None), Tagged::Two(1, 2), Tagged::Named { id: 1 }]));
        assert!(!changes(&serde_json::json!({"a": [1, -1, 1.5, null, {"b": "c"}]})));
    }

    /// Two sets of the same content usually have another order, since each has its own hasher.
    #[test]
    fn order_of_maps_and_sets_is_ignored() {
        let set: HashSet<u32> = (0..1000).collect();
        let map: HashMap<u32, HashSet<u32>> = (0..100).map(|n| (n, (n..n + 100).collect())).collect();
        assert!(!changes(&set));
        assert!(!changes(&map));
        assert!(differs(&set, &(1..1001).collect()));
        assert!(differs(&vec![(1, 2)], &vec![(2, 1)]), "a tuple isn't a set");
    }
}
