//! The values of a search, with the text of every number that isn't a 64-bit integer.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    fmt,
};

use jmespath::{Rcvar, Variable};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use crate::selector::length_of_string;

/// If a crate in the build enables `serde_json`'s feature `arbitrary_precision`, `serde_json` deserializes a number
/// that isn't a 64-bit integer as a map. This is the only name in that map.
pub(super) const NUMBER: &str = "$serde_json::private::Number";

/// The values that one search has read. They live as long as the search, so that no two values share an address.
#[derive(Default)]
pub(super) struct Values {
    roots: Vec<Rcvar>,
    /// The text of each number that isn't a 64-bit integer, by the address of the number's value.
    texts: HashMap<usize, Box<str>>,
    count: usize,
}

/// Why a text wasn't read: it isn't JSON, or the search exceeds its limits.
#[derive(Debug)]
pub(super) enum Unread {
    NotJson(serde_json::Error),
    TooMany,
}

impl Values {
    /// Parses `json` into a value. `most` limits the number of values, including all that were read before.
    pub(super) fn read(&mut self, json: &str, most: usize) -> Result<Rcvar, Unread> {
        let reading = Reading {
            count: Cell::new(self.count),
            texts: RefCell::default(),
            numbers: RefCell::new(Scan { json, at: 0 }),
            most,
        };
        let mut reader = serde_json::Deserializer::from_str(json);
        let read = Value(&reading).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
        self.count = reading.count.get();
        let is_too_many = self.count > most;
        match read {
            Ok(value) => {
                // Only a successful read keeps its texts: a failed read's values are freed, so that new values may get
                // their addresses.
                self.texts.extend(reading.texts.take());
                self.roots.push(Rcvar::clone(&value));
                Ok(value)
            }
            Err(_) if is_too_many => Err(Unread::TooMany),
            Err(error) => Err(Unread::NotJson(error)),
        }
    }

    /// Returns a number's text as it was sent. If the number wasn't sent but calculated, returns the text of its value.
    pub(super) fn text_of(&self, value: &Rcvar, number: &Number) -> String {
        match self.texts.get(&address(value)) {
            Some(text) => text.to_string(),
            None => number.to_string(),
        }
    }
}

fn address(value: &Rcvar) -> usize {
    Rcvar::as_ptr(value) as usize
}

/// The state while one text is read.
struct Reading<'r> {
    count: Cell<usize>,
    texts: RefCell<HashMap<usize, Box<str>>>,
    numbers: RefCell<Scan<'r>>,
    most: usize,
}

impl Reading<'_> {
    fn made<E: Error>(&self, value: Variable) -> Result<Rcvar, E> {
        self.count.set(self.count.get() + 1);
        if self.count.get() > self.most {
            return Err(E::custom("too many values"));
        }
        Ok(Rcvar::new(value))
    }

    /// Makes a number's value, and keeps the number's text. The reader visits the numbers in the order of the JSON, and
    /// so does [`Scan`]. So the scan's next text belongs to this number.
    fn number<E: Error>(&self, number: Option<Number>) -> Result<Rcvar, E> {
        let text = self.numbers.borrow_mut().next();
        self.number_of(number, text)
    }

    fn number_of<E: Error>(&self, number: Option<Number>, text: Option<&str>) -> Result<Rcvar, E> {
        let number = number.ok_or_else(|| E::custom("no number"))?;
        let is_exact = number.is_i64() || number.is_u64();
        let value = self.made(Variable::Number(number))?;
        if let Some(text) = text.filter(|_| !is_exact) {
            self.texts.borrow_mut().insert(address(&value), text.into());
        }
        Ok(value)
    }
}

struct Value<'r>(&'r Reading<'r>);

impl<'j> DeserializeSeed<'j> for Value<'_> {
    type Value = Rcvar;

    fn deserialize<D: Deserializer<'j>>(self, reader: D) -> Result<Rcvar, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'j> Visitor<'j> for Value<'_> {
    type Value = Rcvar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Rcvar, E> {
        self.0.made(Variable::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Rcvar, E> {
        self.0.made(Variable::Bool(value))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Rcvar, E> {
        self.0.number(Some(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Rcvar, E> {
        self.0.number(Some(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Rcvar, E> {
        self.0.number(Number::from_f64(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Rcvar, E> {
        self.0.made(Variable::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut elements: A) -> Result<Rcvar, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = elements.next_element_seed(Value(self.0))? {
            values.push(value);
        }
        self.0.made(Variable::Array(values))
    }

    fn visit_map<A: MapAccess<'j>>(self, mut members: A) -> Result<Rcvar, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(name) = members.next_key::<String>()? {
            if name == NUMBER && values.is_empty() {
                let text: String = members.next_value()?;
                // The value is a float, as it is without the feature `arbitrary_precision`. A number that's too large
                // for a float is an error, because the search can't hold it.
                let float = text.parse::<Number>().ok().and_then(|number| number.as_f64());
                return self.0.number_of(float.and_then(Number::from_f64), Some(&text));
            }
            if values.insert(name, members.next_value_seed(Value(self.0))?).is_some() {
                // If a name appears twice, parsers disagree on which value counts.
                return Err(A::Error::custom("a name appears twice"));
            }
        }
        self.0.made(Variable::Object(values))
    }
}

/// Iterates over the numbers in a JSON text, as they're written there.
struct Scan<'j> {
    json: &'j str,
    at: usize,
}

impl<'j> Iterator for Scan<'j> {
    type Item = &'j str;

    fn next(&mut self) -> Option<&'j str> {
        let bytes = self.json.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                b'"' => self.at += length_of_string(&bytes[self.at..]),
                b'-' | b'0'..=b'9' => {
                    let begin = self.at;
                    self.at += bytes[begin..].iter().take_while(|byte| is_of_number(**byte)).count();
                    return self.json.get(begin..self.at);
                }
                _ => self.at += 1,
            }
        }
        None
    }
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

#[cfg(test)]
mod tests {
    use serde::de::value::MapDeserializer;

    use super::*;

    #[test]
    fn arbitrary_precision_keeps_numbers() {
        let numbers = RefCell::new(Scan { json: "", at: 0 });
        let reading = Reading { count: Cell::new(0), texts: RefCell::default(), numbers, most: 9 };
        let read = |text: &'static str| {
            let members = [(NUMBER, text)].into_iter();
            Value(&reading).deserialize(MapDeserializer::<_, serde::de::value::Error>::new(members))
        };
        let value = read("10.50").unwrap();
        assert!(matches!(&*value, Variable::Number(number) if number.to_string() == "10.5"), "{value:?}");
        assert_eq!(reading.texts.take().remove(&address(&value)).as_deref(), Some("10.50"));
        for invalid in ["1e999", "5.", " 5", "NaN"] {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn digits_in_strings_are_not_numbers() {
        let json = r#"{"1": [-0, 1.50, "2\"3", 4E+2, "\\", 5], "6\\": true, "n": 7e1}"#;
        let numbers = |json| Scan { json, at: 0 }.collect::<Vec<_>>();
        assert_eq!(numbers(json), ["-0", "1.50", "4E+2", "5", "7e1"]);
        assert_eq!(numbers("\"open \\"), [""; 0]);
    }

    #[test]
    fn the_number_of_values_is_limited() {
        let mut values = Values::default();
        assert!(values.read("[1, [2]]", 4).is_ok());
        assert!(matches!(values.read("5", 4), Err(Unread::TooMany)), "the limit counts earlier values too");
        assert!(matches!(Values::default().read("[1, 2", 9), Err(Unread::NotJson(_))));
        assert!(matches!(Values::default().read("1 2", 9), Err(Unread::NotJson(_))));
        assert!(
            matches!(Values::default().read("[1, 2", 2), Err(Unread::NotJson(_))),
            "two values are within the limit"
        );
    }
}
