//! Feeds a JSON text's canonical form into a hash, in one pass. [`Fingerprint`](super::Fingerprint) defines
//! the form.
//!
//! `serde_json` decides whether the text is JSON; this module only scans texts that `serde_json` accepted. The
//! module scans the text itself for two reasons. `serde_json` rounds numbers unless its `arbitrary_precision` is on
//! for the whole build. And reading values as `RawValue` level by level would go over the text once per level. Every
//! array and object becomes a digest when it's closed, so that an object's members can be sorted without
//! reading their contents again.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};

/// How deep arrays and objects may be nested: as deep as `serde_json` reads by default.
const MAX_DEPTH: u8 = 127;

/// How many bytes to reserve, at most, for an object's members before they're read.
const MOST_ROOM: usize = 2048;

/// Feeds the canonical form of `text` into `hash`.
pub(super) fn update(hash: &mut Sha256, text: &[u8]) -> Result<(), Error> {
    let valid: &RawValue = serde_json::from_slice(text).map_err(|error| {
        // This error says what was expected and where, but doesn't quote the text.
        Error::new(ErrorKind::Invalid, "the payload isn't JSON").with_source(error)
    })?;
    update_valid(hash, valid.get())
}

/// Like [`update`], but for a text that `serde_json` has accepted or written, so that it needn't be checked again.
pub(super) fn update_valid(hash: &mut Sha256, text: &str) -> Result<(), Error> {
    let mut scanner = Scanner { text, at: 0, depth: 0 };
    scanner.value(hash).map_err(|stop| {
        let why = match stop {
            Stop::TooDeep => "is nested more than 127 deep",
            Stop::TooLong => "has an object that is too long for a fingerprint",
            Stop::Lost => "isn't JSON that this library can read",
        };
        Error::new(ErrorKind::Invalid, format!("the payload {why}, at byte {}", scanner.at))
    })
}

/// Why a scan ended early.
enum Stop {
    TooDeep,
    /// The members of one object need more than 4 GiB.
    TooLong,
    /// The scanner can't read a text that `serde_json` accepted. That shouldn't happen. If it does, the caller gets an
    /// error.
    Lost,
}

/// A receiver of canonical forms: a hash, or a buffer in which members wait to be sorted.
trait Sink {
    fn put(&mut self, bytes: &[u8]);

    fn put_text(&mut self, tag: u8, text: &[u8]) {
        let mut head = [tag; 9];
        head[1..].copy_from_slice(&(text.len() as u64).to_be_bytes());
        self.put(&head);
        self.put(text);
    }

    fn put_container(&mut self, tag: u8, content: Sha256) {
        self.put(&[tag]);
        self.put(&content.finalize());
    }
}

impl Sink for Sha256 {
    fn put(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The position of one member's canonical form in its object's buffer. This type is small, because a hostile body may
/// have a million members.
struct Member {
    key: u32,
    value: u32,
    end: u32,
}

impl Member {
    fn key<'m>(&self, members: &'m [u8]) -> &'m [u8] {
        &members[self.key as usize + TEXT_HEAD..self.value as usize]
    }

    fn all<'m>(&self, members: &'m [u8]) -> &'m [u8] {
        &members[self.key as usize..self.end as usize]
    }
}

/// One byte for a text's tag, and eight for its length.
const TEXT_HEAD: usize = 9;

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: u8,
}

impl<'a> Scanner<'a> {
    fn value(&mut self, out: &mut impl Sink) -> Result<(), Stop> {
        match self.peek()? {
            b'{' => self.nested(out, Self::object),
            b'[' => self.nested(out, Self::array),
            b'"' => self.string(out),
            word @ (b'n' | b't' | b'f') => {
                self.token();
                out.put(&[word]);
                Ok(())
            }
            b'-' | b'0'..=b'9' => {
                out.put_text(b'#', self.token());
                Ok(())
            }
            _ => Err(Stop::Lost),
        }
    }

    /// Scans an array or an object; the scanner is at its opening bracket.
    fn nested<S: Sink>(
        &mut self,
        out: &mut S,
        container: fn(&mut Self, &mut S) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop::TooDeep);
        }
        self.depth += 1;
        self.at += 1;
        container(self, out)?;
        self.depth -= 1;
        Ok(())
    }

    fn array(&mut self, out: &mut impl Sink) -> Result<(), Stop> {
        let mut content = Sha256::new();
        while !self.closed_by(b']')? {
            self.value(&mut content)?;
        }
        out.put_container(b'[', content);
        Ok(())
    }

    fn object(&mut self, out: &mut impl Sink) -> Result<(), Stop> {
        // Room for twice the rest of the text is usually enough. The cap limits the memory for hostile texts,
        // which may nest a hundred objects.
        let room = (2 * (self.text.len() - self.at)).min(MOST_ROOM);
        let (mut bytes, mut members) = (Vec::with_capacity(room), Vec::with_capacity(16));
        while !self.closed_by(b'}')? {
            members.push(self.member(&mut bytes)?);
        }
        // Equal keys keep their order.
        members.sort_unstable_by(|a, b| a.key(&bytes).cmp(b.key(&bytes)).then(a.key.cmp(&b.key)));
        let mut content = Sha256::new();
        members.iter().for_each(|member| content.update(member.all(&bytes)));
        out.put_container(b'{', content);
        Ok(())
    }

    fn member(&mut self, bytes: &mut Vec<u8>) -> Result<Member, Stop> {
        let position = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| Stop::TooLong);
        let key = position(bytes)?;
        self.expect(b'"')?;
        self.string(bytes)?;
        let value = position(bytes)?;
        self.expect(b':')?;
        self.at += 1;
        self.value(bytes)?;
        Ok(Member { key, value, end: position(bytes)? })
    }

    /// Whether `bracket` comes next. Steps over it, or over the comma before the next element.
    fn closed_by(&mut self, bracket: u8) -> Result<bool, Stop> {
        let next = self.peek()?;
        let closed = next == bracket;
        if closed || next == b',' {
            self.at += 1;
        }
        Ok(closed)
    }

    /// Goes to the next byte that isn't white space, and checks that it's `byte`.
    fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? == byte { Ok(()) } else { Err(Stop::Lost) }
    }

    /// Steps over white space, and returns the byte after it.
    fn peek(&mut self) -> Result<u8, Stop> {
        let rest = &self.text.as_bytes()[self.at..];
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.at += blanks;
        rest.get(blanks).copied().ok_or(Stop::Lost)
    }

    /// Steps over the number or word that begins here, and returns it.
    fn token(&mut self) -> &'a [u8] {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.'))
            .count();
        self.at += length;
        &rest[..length]
    }

    /// Scans a string; the scanner is at its opening quotation mark.
    fn string(&mut self, out: &mut impl Sink) -> Result<(), Stop> {
        self.at += 1;
        let plain = self.unescaped()?;
        if self.byte() == Some(b'"') {
            out.put_text(b'"', plain);
        } else {
            let mut decoded = plain.to_vec();
            while self.byte() == Some(b'\\') {
                self.escape(&mut decoded)?;
                decoded.extend_from_slice(self.unescaped()?);
            }
            out.put_text(b'"', &decoded);
        }
        self.at += 1;
        Ok(())
    }

    /// Steps over the text before the next quotation mark or escape, and returns it.
    fn unescaped(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).ok_or(Stop::Lost)?;
        self.at += length;
        Ok(&rest[..length])
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Decodes the escape that begins here.
    fn escape(&mut self, decoded: &mut Vec<u8>) -> Result<(), Stop> {
        let kind = self.text.as_bytes().get(self.at + 1).copied().ok_or(Stop::Lost)?;
        if kind == b'u' {
            let code = self.escaped_code()?;
            push_code(decoded, code);
            return Ok(());
        }
        self.at += 2;
        decoded.push(match kind {
            b'"' | b'\\' | b'/' => kind,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return Err(Stop::Lost),
        });
        Ok(())
    }

    /// Decodes the code point of one `\uXXXX`, or of two that form a surrogate pair.
    fn escaped_code(&mut self) -> Result<u32, Stop> {
        let first = self.escaped_unit().ok_or(Stop::Lost)?;
        self.at += 6;
        if let (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) = (first, self.escaped_unit()) {
            self.at += 6;
            return Ok(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00));
        }
        Ok(first)
    }

    /// Reads the number of the `\uXXXX` that begins here, if there's one.
    fn escaped_unit(&self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    }
}

/// Adds `code` in UTF-8. Half of a surrogate pair, which UTF-8 excludes, is encoded by the same scheme
/// (WTF-8).
fn push_code(decoded: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(character) => decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let continued = |bits: u32| 0x80 | (bits & 0x3f) as u8;
            decoded.extend_from_slice(&[0xe0 | (code >> 12) as u8, continued(code >> 6), continued(code)]);
        }
    }
}
