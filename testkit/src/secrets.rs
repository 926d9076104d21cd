//! The secrets that no log, metric, error or `Debug` text may contain, and the search for them in any form.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Write as _,
};

use serde_json::Value;

/// The length of the shortest secret to search for. Shorter texts appear in many logs by chance.
const SHORTEST: usize = 6;
/// How many bytes of a long secret to search for.
const LONGEST: usize = 256;
/// The length of the shortest Base64 piece to search for. Shorter pieces appear in many logs by chance.
const SHORTEST_PIECE: usize = 8;

/// The secrets: keys, callers, tokens, bodies and responses.
#[derive(Clone, Debug, Default)]
pub struct Secrets(BTreeSet<Vec<u8>>);

impl Secrets {
    /// Adds a secret if it's long enough to search for.
    pub fn add(&mut self, secret: impl AsRef<[u8]>) {
        let secret = secret.as_ref();
        if secret.len() >= SHORTEST {
            self.0.insert(secret[..secret.len().min(LONGEST)].to_vec());
        }
    }

    /// Adds a body, and each text in it if it's JSON. Field names belong to the program, so they aren't secret.
    pub fn add_body(&mut self, body: &str) {
        self.add(body);
        if let Ok(json) = serde_json::from_str(body) {
            self.add_texts(&json);
        }
    }

    /// Adds each text in a payload.
    pub fn add_texts(&mut self, json: &Value) {
        match json {
            Value::String(text) => self.add(text),
            Value::Array(values) => values.iter().for_each(|value| self.add_texts(value)),
            Value::Object(fields) => fields.values().for_each(|value| self.add_texts(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Adds the secrets of an HTTP request's event: its key, its tokens, its caller, its body.
    pub fn add_http(&mut self, event: &Value) {
        for (name, value) in event["headers"].as_object().into_iter().flatten() {
            let name = name.to_ascii_lowercase();
            if ["idempotency-key", "authorization", "cookie"].contains(&name.as_str()) {
                self.add_texts(value);
            }
        }
        let context = &event["requestContext"];
        let caller = [&context["identity"]["caller"], &context["authorizer"]["iam"]["callerId"]];
        for caller in caller.into_iter().filter_map(Value::as_str) {
            self.add(caller);
            caller.split(':').for_each(|part| self.add(part));
        }
        self.add_body(event["body"].as_str().unwrap_or_default());
    }

    /// The secrets.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// The number of secrets.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns each secret that `text` contains, with its form.
    pub fn found_in(&self, text: &str) -> Vec<Found> {
        let text = text.to_lowercase();
        // `{:?}` prints a list of bytes on one line, and `{:#?}` prints one byte per line. Without white space,
        // both join the bytes by commas.
        let packed: String = text.split_whitespace().collect();
        let (mut as_bytes, mut as_text) = (Pieces::default(), Pieces::default());
        for secret in &self.0 {
            for (form, piece) in forms(secret) {
                let pieces = if form == BYTES { &mut as_bytes } else { &mut as_text };
                pieces.add(piece, (String::from_utf8_lossy(secret).into_owned(), form));
            }
        }
        as_text
            .found_in(&text)
            .chain(as_bytes.found_in(&packed))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

/// The pieces to search for, grouped by their first bytes. A piece is the text of a secret in one of its forms. A
/// recording is too long for one pass per piece, so one pass finds all pieces.
#[derive(Default)]
struct Pieces(HashMap<Vec<u8>, Vec<(String, Found)>>);

/// A secret, and the name of the form in which a text contains it, such as `in hex`.
pub type Found = (String, &'static str);

impl Pieces {
    fn add(&mut self, piece: String, of: Found) {
        self.0.entry(piece.as_bytes()[..SHORTEST].to_vec()).or_default().push((piece, of));
    }

    fn found_in(&self, text: &str) -> impl Iterator<Item = Found> {
        let text = text.as_bytes();
        let firsts: HashSet<_> = self.0.keys().map(|start| start[0]).collect();
        let may_begin: Vec<_> = (0..=u8::MAX).map(|byte| firsts.contains(&byte)).collect();
        let begins =
            text.windows(SHORTEST).enumerate().filter(move |(_, start)| may_begin[usize::from(start[0])]);
        begins.flat_map(move |(at, start)| {
            let pieces = self.0.get(start).into_iter().flatten();
            pieces
                .filter(move |(piece, _)| text[at..].starts_with(piece.as_bytes()))
                .map(|(_, of)| of.clone())
        })
    }
}

const BYTES: &str = "as bytes";

/// Returns the name of each form that a secret can have in a text, and the secret in this form. The secret is in lower
/// case, as is the text that is searched.
fn forms(secret: &[u8]) -> Vec<(&'static str, String)> {
    let joined = |write: fn(&mut String, u8), between| {
        let pieces = secret.iter().map(|byte| {
            let mut piece = String::new();
            write(&mut piece, *byte);
            piece
        });
        pieces.collect::<Vec<_>>().join(between)
    };
    let mut forms = vec![
        ("in hex", joined(|piece, byte| write!(piece, "{byte:02x}").unwrap(), "")),
        (BYTES, joined(|piece, byte| write!(piece, "{byte}").unwrap(), ",")),
        ("as escaped bytes", secret.escape_ascii().to_string()),
    ];
    for skipped in 0..3 {
        let piece = base64(secret, skipped);
        if piece.len() >= SHORTEST_PIECE {
            forms.push(("in Base64, for URLs", piece.replace('+', "-").replace('/', "_")));
            forms.push(("in Base64", piece));
        }
    }
    if let Ok(text) = std::str::from_utf8(secret) {
        let quoted = |text: &str| {
            let json = Value::from(text).to_string();
            json[1..json.len() - 1].to_owned()
        };
        let debug = format!("{text:?}");
        forms.push(("as it is", text.to_owned()));
        forms.push(("as JSON", quoted(text)));
        forms.push(("as JSON in JSON", quoted(&quoted(text))));
        forms.push(("in Debug", debug[1..debug.len() - 1].to_owned()));
    }
    forms.into_iter().map(|(form, piece)| (form, piece.to_lowercase())).collect()
}

/// Returns the part of a Base64 text that depends only on `secret`. `skipped` is the secret's offset, modulo 3, in the
/// bytes before they're encoded.
fn base64(secret: &[u8], skipped: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes = [&[0, 0][..skipped], secret].concat();
    let whole = bytes.chunks_exact(3).flat_map(|bytes| {
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        [18, 12, 6, 0].map(|shift| char::from(ALPHABET[(bits >> shift) as usize & 63]))
    });
    // The first letters depend on the bytes before the secret.
    whole.skip([0, 2, 3][skipped]).collect()
}

#[test]
fn secrets_are_found_in_every_form() {
    let mut secrets = Secrets::default();
    secrets.add_body(r#"{"id":"c4n4ry-\"17\"","short":"c4","n":[{"é":"kettle é"}]}"#);
    assert_eq!(secrets.count(), 3);
    let key = "c4n4ry-\"17\"";
    for text in [
        key.to_owned(),
        key.to_uppercase(),
        format!("{key:?}"),
        format!("{:?}", Value::from(key).to_string()),
        format!("{:?}", key.as_bytes()),
        format!("{:#?}", key.as_bytes()),
        "63346E3472792D22313722".to_owned(),
        // The Base64 of the key alone, of the key after one other byte, and of the key after two other bytes.
        "YzRuNHJ5LSIxNyI=".to_owned(),
        "LmM0bjRyeS0iMTciLg==".to_owned(),
        "Li5jNG40cnktIjE3Ig==".to_owned(),
    ] {
        let found = secrets.found_in(&format!("before {text} after"));
        assert!(!found.is_empty() && found.iter().all(|(secret, _)| secret == key), "{text}: {found:?}");
    }
    assert_eq!(secrets.found_in("b'kettle \\xc3\\xa9'").len(), 1);
    assert_eq!(secrets.found_in("c4n4ry-17, id, short, kettle"), []);
}
