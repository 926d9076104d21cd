//! Channel binding of the type `tls-server-end-point` (RFC 5929). The client's proof that it knows the password covers
//! the hash of the server's certificate, so a server in between can't forward the proof.

use sha2::{Digest as _, Sha224, Sha256, Sha384, Sha512};

/// The hash in a certificate's signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// Hashes the DER `certificate` with the hash function of its signature. If that function is MD5 or SHA-1, uses SHA-256
/// instead. Returns `None` for Ed25519, which has no hash function, so the RFC has no rule. Also returns `None` for
/// RSA-PSS, because this reader skips the parameters that name its hash.
pub(super) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(match signature_hash(certificate)? {
        Hash::Sha224 => Sha224::digest(certificate).to_vec(),
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// `Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm SEQUENCE { algorithm OID, … }, signature }` (RFC 5280).
fn signature_hash(certificate: &[u8]) -> Option<Hash> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    // The object identifiers of the algorithms begin with 1.2.840.113549.1.1 (RSA) or 1.2.840.10045.4 (ECDSA).
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4];
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (_, rest) = element(certificate, SEQUENCE)?;
    let (algorithm, _) = element(rest, SEQUENCE)?;
    let (algorithm, _) = element(algorithm, OBJECT_IDENTIFIER)?;
    match (algorithm.strip_prefix(RSA), algorithm.strip_prefix(ECDSA)) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Some(Hash::Sha256),
        (Some([12]), _) | (_, Some([3, 3])) => Some(Hash::Sha384),
        (Some([13]), _) | (_, Some([3, 4])) => Some(Hash::Sha512),
        (Some([14]), _) | (_, Some([3, 1])) => Some(Hash::Sha224),
        _ => None,
    }
}

/// Reads the DER element with this tag at the beginning of `bytes`. Returns its content and the remaining
/// bytes.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, first, rest @ ..] = bytes else { return None };
    if *found != tag {
        return None;
    }
    let (length, rest) = match usize::from(*first) {
        short @ 0..=0x7f => (short, rest),
        // The byte's low bits are the number of length bytes. These follow, the highest first. A certificate needs at
        // most four.
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(long - 0x80)?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with this algorithm and 300 bytes of signed content.
    fn signed_with(algorithm: &[u8]) -> Vec<u8> {
        let mut body = vec![0x30, 0x82, 1, 44];
        body.extend([7; 300]);
        body.extend([0x30, algorithm.len() as u8 + 4, 6, algorithm.len() as u8]);
        body.extend(algorithm);
        body.extend([5, 0, 3, 1, 0]);
        let mut all = vec![0x30, 0x82];
        all.extend((body.len() as u16).to_be_bytes());
        all.extend(body);
        all
    }

    #[test]
    fn signature_algorithms_determine_the_hash() {
        let (rsa, ecdsa) = ([0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1], [0x2a, 0x86, 0x48, 0xce, 0x3d, 4]);
        for (last, hash) in [
            (5, Some(Hash::Sha256)),
            (11, Some(Hash::Sha256)),
            (12, Some(Hash::Sha384)),
            (13, Some(Hash::Sha512)),
            (14, Some(Hash::Sha224)),
            (10, None),
        ] {
            let certificate = signed_with(&[&rsa[..], &[last]].concat());
            assert_eq!(signature_hash(&certificate), hash, "{last}");
            assert_eq!(server_end_point(&certificate).is_some(), hash.is_some());
        }
        for (last, hash) in [(2, Hash::Sha256), (3, Hash::Sha384), (4, Hash::Sha512)] {
            assert_eq!(signature_hash(&signed_with(&[&ecdsa[..], &[3, last]].concat())), Some(hash));
        }
        assert_eq!(signature_hash(&signed_with(&[0x2b, 0x65, 0x70])), None, "Ed25519");
    }

    #[test]
    fn broken_certificates_have_no_hash() {
        let whole = signed_with(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]);
        for end in 0..whole.len() {
            assert_eq!(signature_hash(&whole[..end]), None, "{end}");
        }
        assert_eq!(signature_hash(&[0x30, 0x80, 0, 0]), None);
    }
}
