//! An operation's [`Outcome`] as it's stored: compressed if that helps, split if it's large, verified when
//! it's read, or marked as not retained.

use std::{
    fmt,
    io::Read,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status, read::DeflateDecoder};
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, ErrorKind},
    format::is_format_name,
    key::Hex,
};

/// The length of the shortest response that's compressed in every store, in bytes. A store may compress shorter ones: see
/// [`Store::compress_from`](crate::store::Store::compress_from).
pub const WORTH_COMPRESSING: usize = 1024;
/// The first room for compressed bytes: enough for most responses.
const ROOM: usize = 4096;
/// How many bytes the encoding and the length add to a record whose response is compressed, with their names. A response
/// shorter than [`WORTH_COMPRESSING`] must save more than that.
const ENCODING_BYTES: usize = 32;
/// A compressor that's ready for use. A new one allocates 320 KB, which takes ten times as long as the compression of 1 KB
/// itself.
static COMPRESSOR: Mutex<Option<Compress>> = Mutex::new(None);

/// How an operation ended, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The response is stored, and can be replayed.
    Retained(StoredResponse),
    /// The operation is done, but its response isn't stored. Duplicates don't get it, and nothing runs
    /// again.
    Omitted,
}

/// A response as a store keeps it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoredResponse {
    /// Whether the kept bytes are the response compressed with DEFLATE (RFC 1951), and not the response itself.
    pub deflated: bool,
    /// The response's length in bytes, which bounds what decoding may produce.
    pub length: u64,
    /// The SHA-256 of the response itself. For an encrypted response, it's the digest of the kept bytes: a digest of
    /// the plaintext would let a reader of the table check guesses.
    pub sha256: [u8; 32],
    /// Labels that say how to read the kept bytes, as one text. A store keeps this text unchanged.
    ///
    /// The label `format=NAME` is for a [`Format`](crate::store::Format) other than JSON. The label `key=ID` names the
    /// key with which a [`Cipher`](crate::store::Cipher) encrypted the kept bytes. If there are both, `;` joins them.
    /// `None` means no labels. The type is `Arc<String>` because it's small: a record is part of many futures.
    pub labels: Option<Arc<String>>,
    /// Where the kept bytes are.
    pub place: Place,
}

/// Where a response's kept bytes are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the record.
    Inline(Bytes),
    /// In this many chunks beside the record: see [`ResponseChunks`](crate::store::ResponseChunks).
    Chunks(u32),
}

/// The labels of a stored response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels<'a> {
    /// The name of the format, unless it's JSON.
    pub format: Option<&'a str>,
    /// The id of the encryption key, if the kept bytes are encrypted.
    pub key_id: Option<&'a str>,
}

impl<'a> Labels<'a> {
    /// Parses a text that `text` has made. Returns `None` for any other text.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (format, key_id) = match (text.strip_prefix("format="), text.strip_prefix("key=")) {
            // A key's ID may contain `;key=`, a format's name can't. So the first `;key=` ends the name.
            (Some(rest), _) => match rest.split_once(";key=") {
                Some((format, key_id)) => (Some(format), Some(key_id)),
                None => (Some(rest), None),
            },
            (None, Some(key_id)) => (None, Some(key_id)),
            (None, None) => return None,
        };
        let is_valid = format.is_none_or(is_format_name) && key_id.is_none_or(is_key_id);
        is_valid.then_some(Self { format, key_id })
    }

    fn text(&self) -> String {
        match (self.format, self.key_id) {
            (Some(format), Some(key_id)) => format!("format={format};key={key_id}"),
            (Some(format), None) => format!("format={format}"),
            (None, key_id) => format!("key={}", key_id.unwrap_or_default()),
        }
    }
}

/// Whether a key's ID can be stored: 1 to 512 visible ASCII characters. A KMS key's ARN has fewer than 100.
pub fn is_key_id(id: &str) -> bool {
    (1..=512).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

impl StoredResponse {
    /// Prepares `response` for storage. Compresses at least 1,024 bytes, if that makes them at least an eighth
    /// smaller.
    ///
    /// The kept bytes are inline. A store that writes them as chunks then calls [`into_chunks`](Self::into_chunks).
    pub fn new(response: Bytes) -> Self {
        Self::compressed_from(response, WORTH_COMPRESSING)
    }

    /// Like [`new`](Self::new), but also compresses a shorter response of at least `from` bytes, if that makes it shorter
    /// than `from`.
    pub(crate) fn compressed_from(response: Bytes, from: usize) -> Self {
        let (length, sha256) = (response.len() as u64, Sha256::digest(&response).into());
        let (deflated, kept) = match compressed(&response, from) {
            Some(compressed) => (true, compressed),
            None => (false, response),
        };
        Self { deflated, length, sha256, labels: None, place: Place::Inline(kept) }
    }

    /// Adds the name of the response's format. Called before [`encrypted`](Self::encrypted).
    pub(crate) fn in_format(self, name: &str) -> Self {
        Self { labels: Some(Labels { format: Some(name), key_id: None }.text().into()), ..self }
    }

    /// Replaces the kept bytes by `ciphertext`, which is encrypted with the key `key_id`.
    pub(crate) fn encrypted(self, key_id: &str, ciphertext: Bytes) -> Self {
        let sha256 = Sha256::digest(&ciphertext).into();
        let format = self.labels().ok().and_then(|labels| labels.format);
        let labels = Some(Labels { format, key_id: Some(key_id) }.text().into());
        Self { sha256, labels, place: Place::Inline(ciphertext), ..self }
    }

    /// Returns the labels.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a label that this version doesn't know, since it can't tell what the bytes are.
    pub(crate) fn labels(&self) -> Result<Labels<'_>, Error> {
        let text = self.labels.as_ref().map(|labels| labels.as_str());
        text.map_or(Some(Labels::default()), Labels::parse)
            .ok_or_else(|| damaged("the stored response has a label that this version can't read"))
    }

    /// Returns the same response, noting that its kept bytes are in `count` chunks, which the caller has written.
    #[must_use]
    pub fn into_chunks(self, count: u32) -> Self {
        Self { place: Place::Chunks(count), ..self }
    }

    /// Whether this stored response was made from `response`. `None` if that's unknown, because the kept bytes are
    /// encrypted.
    pub(crate) fn is_of(&self, response: &[u8]) -> Option<bool> {
        let is_it = || self.length == response.len() as u64 && self.check_digest(response).is_ok();
        self.is_plain().then(is_it)
    }

    /// The maximum length of the kept bytes. Compression never makes them longer than the response. Encryption adds
    /// a length that only the cipher knows, so an encrypted response has no maximum.
    pub(crate) fn kept_limit(&self) -> u64 {
        if self.is_plain() { self.length } else { u64::MAX }
    }

    /// Whether the kept bytes are known not to be encrypted.
    fn is_plain(&self) -> bool {
        self.labels().is_ok_and(|labels| labels.key_id.is_none())
    }

    /// Decodes `kept` into the response.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the bytes don't decode to the recorded length and digest, or are encrypted.
    pub fn decode(&self, kept: &Bytes) -> Result<Bytes, Error> {
        if self.labels()?.key_id.is_some() {
            return Err(damaged("the stored response is encrypted"));
        }
        let response = self.decoded(kept)?;
        self.check_digest(&response)?;
        Ok(response)
    }

    /// Checks `bytes` against the recorded digest. `bytes` is the response, or the ciphertext of an encrypted response.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the digests differ.
    pub(crate) fn check_digest(&self, bytes: &[u8]) -> Result<(), Error> {
        if <[u8; 32]>::from(Sha256::digest(bytes)) == self.sha256 {
            Ok(())
        } else {
            Err(damaged("the stored response doesn't match its digest"))
        }
    }

    /// Decodes `kept` without checking the digest. If the stored bytes are encrypted, `kept` must be decrypted already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the bytes don't decode to the recorded length.
    pub(crate) fn decoded(&self, kept: &Bytes) -> Result<Bytes, Error> {
        let response = if self.deflated { decompressed(kept, self.length)? } else { kept.clone() };
        if response.len() as u64 != self.length {
            return Err(damaged("the stored response's length doesn't match the record"));
        }
        Ok(response)
    }
}

impl fmt::Debug for StoredResponse {
    /// Shows the shape, never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, chunks) = match &self.place {
            Place::Inline(kept) => (Some(kept.len()), None),
            Place::Chunks(count) => (None, Some(count)),
        };
        f.debug_struct("StoredResponse")
            .field("deflated", &self.deflated)
            .field("length", &self.length)
            .field("sha256", &format_args!("{}…", Hex(&self.sha256[..4])))
            .field("labels", &self.labels)
            .field("inline_bytes", &kept)
            .field("chunks", &chunks)
            .finish()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(kept) => write!(f, "Inline(<{} bytes>)", kept.len()),
            Self::Chunks(count) => write!(f, "Chunks({count})"),
        }
    }
}

/// Returns the error for stored bytes that aren't the recorded response.
fn damaged(how: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, how)
}

/// Compresses `response`, or returns `None` if that doesn't pay.
fn compressed(response: &Bytes, from: usize) -> Option<Bytes> {
    let longest = match response.len() {
        length if length >= WORTH_COMPRESSING => length / 8 * 7,
        length if length >= from => from.saturating_sub(ENCODING_BYTES),
        _ => return None,
    };
    let idle = || COMPRESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    let mut compressor = idle().take().unwrap_or_else(|| Compress::new(Compression::fast(), false));
    let kept = compressed_by(&mut compressor, response, longest);
    compressor.reset();
    *idle() = Some(compressor);
    kept
}

/// Returns at most `longest` bytes; `None` if that's not enough. The vector grows with the output, since flate2 fills its
/// spare room with zeros, and so takes that much memory.
fn compressed_by(compressor: &mut Compress, response: &[u8], longest: usize) -> Option<Bytes> {
    let mut kept = Vec::new();
    // A compressor that leaves room makes no more progress.
    while kept.len() == kept.capacity() && kept.len() < longest {
        kept.reserve_exact(kept.len().max(ROOM).min(longest - kept.len()));
        let rest = response.get(usize::try_from(compressor.total_in()).ok()?..)?;
        match compressor.compress_vec(rest, &mut kept, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => return (kept.len() <= longest).then(|| kept.into()),
            // The room is used up.
            Ok(_) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Decompresses at most `length + 1` bytes, so that a damaged record can't fill the memory.
fn decompressed(kept: &Bytes, length: u64) -> Result<Bytes, Error> {
    let mut response = Vec::new();
    DeflateDecoder::new(kept.as_ref())
        .take(length.saturating_add(1))
        .read_to_end(&mut response)
        .map_err(|_| damaged("the stored response can't be decompressed"))?;
    Ok(response.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(response: &StoredResponse) -> Bytes {
        match &response.place {
            Place::Inline(kept) => kept.clone(),
            Place::Chunks(_) => panic!("not inline"),
        }
    }

    #[test]
    fn responses_round_trip_byte_for_byte() {
        let noise: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for response in [&b""[..], b"null", b"\xff\x00binary", &[b'a'; 100_000], &noise] {
            let stored = StoredResponse::new(Bytes::copy_from_slice(response));
            assert_eq!(stored.decode(&kept(&stored)).unwrap(), response);
        }
    }

    #[test]
    fn chunking_changes_only_the_place() {
        let stored = StoredResponse::new(Bytes::from_static(b"response"));
        let in_chunks = stored.clone().into_chunks(3);
        assert_eq!(in_chunks, StoredResponse { place: Place::Chunks(3), ..stored });
    }

    #[test]
    fn only_long_compressible_responses_are_compressed() {
        let is_compressed = |response: Vec<u8>| StoredResponse::new(response.into()).deflated;
        assert!(!is_compressed(vec![b'a'; 1023]));
        assert!(is_compressed(vec![b'a'; 1024]));
        let from_600 = |length| StoredResponse::compressed_from(vec![b'a'; length].into(), 600).deflated;
        assert_eq!([599, 600, 1023, 1024].map(from_600), [false, true, true, true]);
        // A SHA-256 chain: 4,096 bytes that don't compress.
        let mut noise = vec![0u8; 32];
        while noise.len() < 4096 {
            noise.extend_from_slice(&Sha256::digest(&noise));
        }
        assert!(!is_compressed(noise));
    }

    /// 544 bytes that don't compress, and 476 that do.
    #[test]
    fn short_responses_must_fit_when_compressed() {
        let mut response = vec![0u8; 32];
        while response.len() < 576 {
            response.extend_from_slice(&Sha256::digest(&response));
        }
        response.resize(1020, 0);
        assert!(!StoredResponse::compressed_from(response.clone().into(), 600).deflated);
        assert!(StoredResponse::compressed_from(response.into(), 720).deflated);
    }

    #[test]
    fn the_reused_compressor_forgets_earlier_responses() {
        let responses: Vec<Bytes> = (0..40u8).map(|n| vec![n; 1024 + 500 * usize::from(n)].into()).collect();
        let first: Vec<_> = responses.iter().cloned().map(StoredResponse::new).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (response, first) in responses.iter().zip(&first).rev() {
                        let stored = StoredResponse::new(response.clone());
                        assert_eq!(&stored, first);
                        assert_eq!(stored.decode(&kept(&stored)).unwrap(), response);
                    }
                });
            }
        });
    }

    #[test]
    fn responses_that_deflate_to_half_are_compressed() {
        // Each byte of a SHA-256 chain becomes two hexadecimal digits, which DEFLATE makes about half as long.
        let mut digest = Sha256::digest(b"");
        let mut digits = String::new();
        while digits.len() < 4096 {
            digits.extend(digest.iter().map(|byte| format!("{byte:02x}")));
            digest = Sha256::digest(digest);
        }
        let stored = StoredResponse::new(Bytes::from(digits.clone()));
        assert!(stored.deflated, "stored {} of {} bytes", kept(&stored).len(), digits.len());
        assert_eq!(stored.decode(&kept(&stored)).unwrap(), digits);
    }

    #[test]
    fn damaged_responses_are_detected() {
        let stored = StoredResponse::new(vec![b'a'; 5000].into());
        let good = kept(&stored);
        assert!(stored.decode(&good.slice(..good.len() - 1)).is_err());
        assert!(stored.decode(&Bytes::from_static(b"not deflate")).is_err());
        let longer = StoredResponse { length: 5001, ..stored.clone() };
        assert!(longer.decode(&good).is_err());
        let other = StoredResponse { sha256: [0; 32], ..stored };
        assert!(other.decode(&good).is_err());
    }

    #[test]
    fn decompression_is_bounded_by_the_recorded_length() {
        let bomb = StoredResponse::new(vec![0; 10_000_000].into());
        let lying = StoredResponse { length: 10, ..bomb.clone() };
        assert_eq!(decompressed(&kept(&bomb), 10).unwrap().len(), 11);
        assert!(lying.decode(&kept(&bomb)).is_err());
    }

    #[test]
    fn labels_round_trip() {
        for (format, key_id, text) in [
            (Some("cbor"), None, "format=cbor"),
            (None, Some("arn:aws:kms:eu-west-1:1:key/a;key=b"), "key=arn:aws:kms:eu-west-1:1:key/a;key=b"),
            (Some("a.b-1"), Some("k1"), "format=a.b-1;key=k1"),
        ] {
            let labels = Labels { format, key_id };
            assert_eq!((labels.text().as_str(), Labels::parse(text)), (text, Some(labels)));
        }
    }

    #[test]
    fn unknown_labels_are_corrupt() {
        let long = format!("key={}", "k".repeat(513));
        for text in [
            "",
            "x",
            "codec=x",
            "format=",
            "format=CBOR",
            "format=a;format=b",
            "key=",
            "key=a b",
            "format=a;key=",
            &long,
        ] {
            let stored =
                StoredResponse { labels: Some(Arc::new(text.into())), ..StoredResponse::new("{}".into()) };
            assert!(stored.labels().is_err() && stored.decode(&kept(&stored)).is_err(), "{text}");
        }
    }

    #[test]
    fn debug_shows_no_bytes() {
        let stored = StoredResponse::new(Bytes::from_static(b"secret"));
        assert!(!format!("{stored:?} {:?}", stored.place).contains("secret"));
    }
}
