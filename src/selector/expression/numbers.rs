//! The text of a number, by its value.

use std::{borrow::Cow, collections::HashMap};

use serde_json::Number;

/// The numbers of some JSON texts that a float does not tell exactly.
pub(super) struct Numbers<'t> {
    texts: &'t [String],
    /// By the float's bits; `None` where two texts are one float. Made when it is first asked for.
    by_float: Option<HashMap<u64, Option<&'t str>>>,
}

impl<'t> Numbers<'t> {
    pub(super) fn of(texts: &'t [String]) -> Self {
        Self { texts, by_float: None }
    }

    /// The text that `number` was sent as; `None` if that cannot be told. One that was calculated has none: it is
    /// written as a float.
    pub(super) fn text_of(&mut self, number: &Number) -> Option<Cow<'t, str>> {
        if is_exact(number) {
            return Some(number.to_string().into());
        }
        let texts = self.texts;
        let by_float = self.by_float.get_or_insert_with(|| by_float(texts));
        match by_float.get(&number.as_f64()?.to_bits()) {
            Some(text) => text.map(Cow::Borrowed),
            None => Some(number.to_string().into()),
        }
    }
}

/// Whether it is held as an integer.
fn is_exact(number: &Number) -> bool {
    number.is_i64() || number.is_u64()
}

fn by_float(texts: &[String]) -> HashMap<u64, Option<&str>> {
    let mut found = HashMap::new();
    for text in texts.iter().flat_map(|text| numbers(text)) {
        let Ok(number) = serde_json::from_str::<Number>(text) else { continue };
        let Some(float) = number.as_f64().filter(|_| !is_exact(&number)) else { continue };
        found
            .entry(float.to_bits())
            .and_modify(|known: &mut Option<&str>| *known = known.filter(|known| *known == text))
            .or_insert(Some(text));
    }
    found
}

/// The numbers of a JSON text, as they stand there.
fn numbers(json: &str) -> impl Iterator<Item = &str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at += length_of_string(&bytes[at..]),
                b'-' | b'0'..=b'9' => {
                    let begin = at;
                    at += bytes[at..].iter().take_while(|byte| is_of_number(**byte)).count();
                    return json.get(begin..at);
                }
                _ => at += 1,
            }
        }
        None
    })
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

/// Of a string from its opening quote to its closing one.
fn length_of_string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_outside_of_strings() {
        let json = r#"{"1": [-0, 1.50, "2\"3", 4E+2, "\\", 5], "6\\": true, "n": 7e1}"#;
        assert_eq!(numbers(json).collect::<Vec<_>>(), ["-0", "1.50", "4E+2", "5", "7e1"]);
        assert_eq!(numbers("\"open \\").count(), 0);
    }
}
