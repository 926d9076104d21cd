//! The parameters of a store's URL.

use crate::error::{Error, ErrorKind};

/// Decodes the percent-encoded value of the parameter `name`. An error doesn't show the value.
pub fn decoded(name: &str, value: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let decoded = if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit(rest.next()), digit(rest.next()));
            high.zip(low).and_then(|(high, low)| u8::try_from(high << 4 | low).ok())
        } else {
            Some(byte)
        };
        let Some(decoded) = decoded else {
            return Err(invalid(format!(
                "the URL's `{name}` has a `%` without two hex digits after it; write `%25` for a percent sign"
            )));
        };
        bytes.push(decoded);
    }
    String::from_utf8(bytes).map_err(|_| invalid(format!("the URL's `{name}` isn't UTF-8")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
