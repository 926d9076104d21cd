//! Properties of every JSON text, checked on trees from a seeded generator.

use std::{fmt, fmt::Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::json;
use crate::fingerprint::Fingerprint;

const ROUNDS: u64 = 3000;

#[test]
fn order_white_space_and_escapes_never_matter() {
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let tree = tree(&mut random, 4);
        let (one, other) = (render(&tree, &mut random), render(&tree, &mut random));
        assert_eq!(json(&one), json(&other), "seed {seed}\n{one}\n{other}");
        assert_eq!(json(&one), reference(&one), "seed {seed}\n{one}");
    }
}

#[test]
fn every_change_alters_the_fingerprint() {
    let mut changed = 0;
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let tree = tree(&mut random, 4);
        let mut other = tree.clone();
        let nodes = count(&other);
        let at = random.below(nodes);
        change(&mut other, &mut { at }, &mut random);
        if canonical(&other) != canonical(&tree) {
            changed += 1;
            let (one, other) = (render(&tree, &mut random), render(&other, &mut random));
            assert_ne!(json(&one), json(&other), "seed {seed}\n{one}\n{other}");
        }
    }
    assert!(changed > ROUNDS * 9 / 10, "only {changed} of {ROUNDS} changes altered the tree");
}

#[test]
fn damaged_json_parses_like_the_reference() {
    let mut accepted = 0;
    for seed in 0..ROUNDS * 4 {
        let mut random = Random::new(seed);
        let tree = tree(&mut random, 3);
        let mut text = render(&tree, &mut random).into_bytes();
        for _ in 0..=random.below(2) {
            let at = random.below(text.len());
            let byte = b"{}[]\",:\\u0dD8e.-+ tn\xc3\xa9"[random.below(22)];
            match random.below(3) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => drop(text.remove(at)),
            }
            if text.is_empty() {
                break;
            }
        }
        let found = Fingerprint::of_json(&text);
        let valid: Result<&RawValue, _> = serde_json::from_slice(&text);
        assert_eq!(found.is_ok(), valid.is_ok(), "seed {seed}");
        if let (Ok(found), Ok(valid)) = (found, valid) {
            accepted += 1;
            assert_eq!(found, reference(valid.get()), "seed {seed}\n{}", valid.get());
        }
    }
    assert!(accepted > 1000, "only {accepted} of the damaged texts were valid JSON");
}

/// A JSON text's tree, from a slow and simple parser. The tests compare the scanner with this parser.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Word(&'static str),
    Number(String),
    /// The string's content in WTF-8.
    String(Vec<u8>),
    Array(Vec<Tree>),
    Object(Vec<(Vec<u8>, Tree)>),
}

fn reference(text: &str) -> Fingerprint {
    let mut hash = Sha256::new();
    hash.update(b"lambda-idempotency fingerprint v1J");
    hash.update(encoded(&canonical(&read(text.trim()))));
    Fingerprint::from_digest(hash.finalize().into())
}

fn encoded(tree: &Tree) -> Vec<u8> {
    let text = |tag: &[u8], text: &[u8]| [tag, &(text.len() as u64).to_be_bytes(), text].concat();
    let container = |tag: &[u8], content: Vec<u8>| [tag, &Sha256::digest(content)].concat();
    match tree {
        Tree::Word(word) => word.as_bytes()[..1].to_vec(),
        Tree::Number(number) => text(b"#", number.as_bytes()),
        Tree::String(string) => text(b"\"", string),
        Tree::Array(items) => container(b"[", items.iter().flat_map(encoded).collect()),
        Tree::Object(members) => {
            let member = |(key, value): &(Vec<u8>, Tree)| [text(b"\"", key), encoded(value)].concat();
            container(b"{", members.iter().flat_map(member).collect())
        }
    }
}

fn canonical(tree: &Tree) -> Tree {
    match tree {
        Tree::Array(items) => Tree::Array(items.iter().map(canonical).collect()),
        Tree::Object(members) => {
            let mut members: Vec<_> =
                members.iter().map(|(key, value)| (key.clone(), canonical(value))).collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            Tree::Object(members)
        }
        other => other.clone(),
    }
}

fn read(text: &str) -> Tree {
    match text.as_bytes()[0] {
        b'n' => Tree::Word("null"),
        b't' => Tree::Word("true"),
        b'f' => Tree::Word("false"),
        b'"' => Tree::String(serde_json::from_str::<Content>(text).unwrap().0),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap();
            Tree::Array(items.into_iter().map(|item| read(item.get())).collect())
        }
        b'{' => Tree::Object(serde_json::from_str::<Members>(text).unwrap().0),
        _ => Tree::Number(text.to_owned()),
    }
}

/// A string's content as WTF-8, which `serde_json` gives to visitors that ask for bytes.
#[derive(PartialEq, Eq, Hash)]
struct Content(Vec<u8>);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Content, E> {
                Ok(Content(bytes.to_vec()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content(text.as_bytes().to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

struct Members(Vec<(Vec<u8>, Tree)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<Content, &RawValue>()? {
                    members.push((key.0, read(value.get())));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Xorshift. A failure prints the seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

fn tree(random: &mut Random, depth: usize) -> Tree {
    match random.below(if depth == 0 { 6 } else { 12 }) {
        0 => Tree::Word(["null", "true", "false"][random.below(3)]),
        1..=2 => Tree::Number(number(random)),
        3..=5 => Tree::String(string(random)),
        6..=8 => Tree::Array((0..random.below(5)).map(|_| tree(random, depth - 1)).collect()),
        _ => Tree::Object((0..random.below(6)).map(|_| (string(random), tree(random, depth - 1))).collect()),
    }
}

fn number(random: &mut Random) -> String {
    const NUMBERS: [&str; 12] =
        ["0", "-0", "1", "1.0", "1.00", "1e0", "10", "1E1", "100", "-1", "9007199254740993", "1e-999"];
    NUMBERS[random.below(NUMBERS.len())].to_owned()
}

/// Draws a string of at most three pieces, so that keys collide. Some pieces are half of a surrogate pair.
fn string(random: &mut Random) -> Vec<u8> {
    const PIECES: [&[u8]; 14] = [
        b"a",
        b"b",
        b"\"",
        b"\\",
        b"/",
        b"\n",
        b"\x01",
        b"\x08\x0c",
        b"\r\t",
        b"u0061",
        "é".as_bytes(),
        "😀".as_bytes(),
        b"\xed\xa0\x80",
        b"\xed\xb0\x80",
    ];
    let mut string: Vec<u8> = Vec::new();
    for _ in 0..random.below(4) {
        let piece = PIECES[random.below(PIECES.len())];
        // Two matching halves would form one character.
        if !(piece == b"\xed\xb0\x80" && string.ends_with(b"\xed\xa0\x80")) {
            string.extend_from_slice(piece);
        }
    }
    string
}

fn render(tree: &Tree, random: &mut Random) -> String {
    let mut text = String::new();
    blank(&mut text, random);
    match tree {
        Tree::Word(word) => text.push_str(word),
        Tree::Number(number) => text.push_str(number),
        Tree::String(string) => render_string(string, &mut text, random),
        Tree::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| render(item, random)).collect();
            text.push_str(&format!("[{}]", items.join(",")));
        }
        Tree::Object(members) => render_object(members, &mut text, random),
    }
    blank(&mut text, random);
    // JSON allows white space around the text, and around every value in it.
    text
}

/// Shuffles the members, but keeps equal keys in order.
fn render_object(members: &[(Vec<u8>, Tree)], text: &mut String, random: &mut Random) {
    let mut left: Vec<_> = members.iter().collect();
    let mut shown = Vec::new();
    while !left.is_empty() {
        let wanted = &left[random.below(left.len())].0;
        let first = left.iter().position(|(key, _)| key == wanted).unwrap();
        let (key, value) = left.remove(first);
        let mut member = String::new();
        blank(&mut member, random);
        render_string(key, &mut member, random);
        blank(&mut member, random);
        member.push(':');
        member.push_str(&render(value, random));
        shown.push(member);
    }
    let empty = if shown.is_empty() { " " } else { "" };
    write!(text, "{{{}{empty}}}", shown.join(",")).unwrap();
}

fn blank(text: &mut String, random: &mut Random) {
    text.push_str(["", "", "", " ", "\n", "\t\r\n "][random.below(6)]);
}

fn render_string(string: &[u8], text: &mut String, random: &mut Random) {
    text.push('"');
    for chunk in string.utf8_chunks() {
        chunk.valid().chars().for_each(|character| render_character(character, text, random));
        // Half of a surrogate pair takes three bytes, and each byte is its own invalid chunk. The second byte tells
        // which half it is, so the whole escape is written at this byte.
        match chunk.invalid() {
            [0xed] => {}
            [0xa0] => text.push_str(["\\ud800", "\\uD800"][random.below(2)]),
            [0xb0] => text.push_str(["\\udc00", "\\uDC00"][random.below(2)]),
            _ => {}
        }
    }
    text.push('"');
}

fn render_character(character: char, text: &mut String, random: &mut Random) {
    let short = match character {
        '"' => Some("\\\""),
        '\\' => Some("\\\\"),
        '\n' => Some("\\n"),
        '\r' => Some("\\r"),
        '\t' => Some("\\t"),
        '\x08' => Some("\\b"),
        '\x0c' => Some("\\f"),
        '/' if random.below(2) == 0 => Some("\\/"),
        _ => None,
    };
    let must = character < ' ' || matches!(character, '"' | '\\');
    match (short, random.below(3)) {
        (Some(short), 0 | 1) => text.push_str(short),
        (None, 0 | 1) if !must => text.push(character),
        (_, how) => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let digits = if how == 0 { format!("{unit:04x}") } else { format!("{unit:04X}") };
                text.push_str(&format!("\\u{digits}"));
            }
        }
    }
}

fn count(tree: &Tree) -> usize {
    1 + match tree {
        Tree::Array(items) => items.iter().map(count).sum(),
        Tree::Object(members) => members.iter().map(|(_, value)| count(value)).sum(),
        _ => 0,
    }
}

/// Changes the node with the number `at`, counted from this tree's root. Returns whether the tree has this node.
fn change(tree: &mut Tree, at: &mut usize, random: &mut Random) -> bool {
    if *at == 0 {
        *tree = changed(tree.clone(), random);
        return true;
    }
    *at -= 1;
    match tree {
        Tree::Array(items) => items.iter_mut().any(|item| change(item, at, random)),
        Tree::Object(members) => members.iter_mut().any(|(_, value)| change(value, at, random)),
        _ => false,
    }
}

fn changed(tree: Tree, random: &mut Random) -> Tree {
    match (tree, random.below(4)) {
        (tree, 0) => Tree::Array(vec![tree]),
        (Tree::Word(word), 1) => Tree::String(word.as_bytes().to_vec()),
        (Tree::Word(word), _) => Tree::Word(if word == "true" { "null" } else { "true" }),
        (Tree::Number(number), 1) => Tree::String(number.into_bytes()),
        (Tree::Number(number), _) if number.contains(['e', 'E']) => Tree::Number(number + "0"),
        (Tree::Number(number), 2) => Tree::Number(number + "e0"),
        (Tree::Number(number), _) => {
            Tree::Number(number.clone() + if number.contains('.') { "0" } else { ".0" })
        }
        (Tree::String(mut string), _) => {
            string.extend_from_slice(b"x");
            Tree::String(string)
        }
        (Tree::Array(mut items), 1) if items.len() > 1 => {
            items.swap(0, 1);
            Tree::Array(items)
        }
        (Tree::Array(mut items), 2) if !items.is_empty() => {
            items.pop();
            Tree::Array(items)
        }
        (Tree::Array(mut items), _) => {
            items.push(Tree::Word("null"));
            Tree::Array(items)
        }
        (Tree::Object(mut members), 1) if !members.is_empty() => {
            members[0].0.extend_from_slice(b"x");
            Tree::Object(members)
        }
        (Tree::Object(mut members), 2) if members.len() > 1 => {
            let (first, rest) = members.split_at_mut(1);
            std::mem::swap(&mut first[0].1, &mut rest[0].1);
            Tree::Object(members)
        }
        (Tree::Object(mut members), _) => {
            members.push((b"new".to_vec(), Tree::Word("null")));
            Tree::Object(members)
        }
    }
}
