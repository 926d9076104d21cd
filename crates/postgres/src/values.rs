//! Converts the values of statements and rows to and from PostgreSQL's binary form.

use std::{borrow::Cow, error::Error as StdError};

use bytes::{BufMut as _, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use lambda_idempotency_core::store::toolkit as codec;

type Failure = Box<dyn StdError + Sync + Send>;

/// One value of a statement.
///
/// `tokio-postgres` logs the values of prepared statements at debug level, with `Debug`. So `Debug` shows only a
/// value's type.
#[derive(Clone)]
pub(super) enum Value<'a> {
    /// NULL, of any type.
    Null,
    /// `text`, or the same in UTF-8 as `bytea`.
    Text(Cow<'a, str>),
    /// `bytea`.
    Bytes(Cow<'a, [u8]>),
    /// `numeric` or `bigint`.
    Number(u64),
    /// `bigint`.
    Integer(i64),
}

impl<'a> From<codec::Value<'a>> for Value<'a> {
    fn from(value: codec::Value<'a>) -> Self {
        match value {
            codec::Value::Number(number) => Self::Number(number),
            codec::Value::Text(text) => Self::Text(text),
            codec::Value::Bytes(bytes) => Self::Bytes(bytes),
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Null => "NULL",
            Self::Text(_) => "<text>",
            Self::Bytes(_) => "<bytea>",
            Self::Number(_) => "<numeric>",
            Self::Integer(_) => "<bigint>",
        })
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self, type_: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        match self {
            Self::Null => return Ok(IsNull::Yes),
            Self::Text(text) if [Type::TEXT, Type::BYTEA].contains(type_) => out.put_slice(text.as_bytes()),
            Self::Bytes(bytes) if *type_ == Type::BYTEA => out.put_slice(bytes),
            Self::Number(number) if *type_ == Type::NUMERIC => put_numeric(*number, out),
            Self::Number(number) if *type_ == Type::INT8 => out.put_i64((*number).try_into()?),
            Self::Integer(number) if *type_ == Type::INT8 => out.put_i64(*number),
            _ => return Err(format!("the statement expects {}, not {self:?}", type_.name()).into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(type_: &Type) -> bool {
        [Type::TEXT, Type::BYTEA, Type::NUMERIC, Type::INT8].contains(type_)
    }

    to_sql_checked!();
}

/// A `numeric` is sent as base-10,000 digits, the highest first.
const BASE: u64 = 10_000;

/// Writes the form of `numeric_send`: the number of digits, the weight of the first digit (as a power of the base),
/// the sign, the number of decimal places, and the digits; two bytes each.
fn put_numeric(mut number: u64, out: &mut BytesMut) {
    let (mut digits, mut count) = ([0_u16; 5], 0);
    while number > 0 {
        // The remainder is below 10,000, so it fits.
        digits[count] = (number % BASE) as u16;
        number /= BASE;
        count += 1;
    }
    // The count is at most 5, so it fits.
    out.put_u16(count as u16);
    out.put_u16(count.saturating_sub(1) as u16);
    // The sign (positive), and the number of decimal places (none).
    out.put_u32(0);
    for digit in digits[..count].iter().rev() {
        out.put_u16(*digit);
    }
}

/// A `numeric` that is an integer from 0 to `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub(super) u64);

impl<'a> FromSql<'a> for Number {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        parse_numeric(raw).map(Self).ok_or_else(|| "not a 64-bit whole number".into())
    }

    fn accepts(type_: &Type) -> bool {
        *type_ == Type::NUMERIC
    }
}

fn parse_numeric(raw: &[u8]) -> Option<u64> {
    let mut words = raw.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let (count, weight, sign) = (words.next()?, words.next()?, words.next()?);
    let _decimal_places = words.next()?;
    let digits: Vec<u16> = words.collect();
    if sign != 0 || digits.len() != usize::from(count) {
        return None;
    }
    if count == 0 {
        return Some(0);
    }
    // The number of digits before the decimal point. `digits` may be shorter, since PostgreSQL omits trailing zero
    // digits. If it's longer, some digits are after the decimal point, so refuse the number.
    let places =
        usize::from(weight).checked_add(1).filter(|places| *places <= 5 && *places >= digits.len())?;
    (0..places).try_fold(0_u64, |number, place| {
        let digit = digits.get(place).copied().unwrap_or(0);
        number.checked_mul(BASE)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_near_powers_round_trip() {
        let powers = (0..64).map(|shift| 1_u64 << shift).chain((0..20).map(|power| 10_u64.pow(power)));
        for near in powers.chain([0, u64::MAX]) {
            for number in [near.saturating_sub(1), near, near.saturating_add(1)] {
                let mut raw = BytesMut::new();
                put_numeric(number, &mut raw);
                assert_eq!(parse_numeric(&raw), Some(number));
            }
        }
    }

    #[test]
    fn only_unsigned_64_bit_integers_are_decoded() {
        let raw = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        // 12,345,678 and 20,000, as PostgreSQL sends them. In base 10,000, the second digit of 20,000 is a zero, which
        // PostgreSQL omits.
        assert_eq!(parse_numeric(&raw(&[2, 1, 0, 0, 1234, 5678])), Some(12_345_678));
        assert_eq!(parse_numeric(&raw(&[1, 1, 0, 0, 2])), Some(20_000));
        for wrong in [
            &[][..],
            &[1, 0, 0],
            // Negative, NaN, infinite.
            &[1, 0, 0x4000, 0, 1],
            &[0, 0, 0xc000, 0],
            &[0, 0, 0xd000, 0],
            // 0.5 and 1.5.
            &[1, 0xffff, 0, 1, 5000],
            &[2, 0, 0, 1, 1, 5000],
            // 2^64, and a much larger number.
            &[5, 4, 0, 0, 1844, 6744, 737, 955, 1616],
            &[1, 5, 0, 0, 1],
            // Fewer digits than the header says.
            &[2, 1, 0, 0, 1],
        ] {
            assert_eq!(parse_numeric(&raw(wrong)), None, "{wrong:?}");
        }
    }

    #[test]
    fn debug_hides_values_and_types_must_match() {
        let shown = format!("{:?}", [Value::from("secret"), Value::Bytes(b"secret"[..].into()), Value::Null]);
        assert_eq!(shown, "[<text>, <bytea>, NULL]");
        let wrong = [
            (Value::Integer(1), Type::NUMERIC),
            (Value::Number(u64::MAX), Type::INT8),
            (Value::from("text"), Type::INT8),
            (Value::Bytes(b"bytes"[..].into()), Type::TEXT),
        ];
        for (value, type_) in wrong {
            assert!(value.to_sql(&type_, &mut BytesMut::new()).is_err(), "{value:?} as {type_}");
        }
        assert!(Value::Null.to_sql(&Type::INT8, &mut BytesMut::new()).is_ok());
    }

    #[test]
    fn only_the_tables_types_are_accepted() {
        assert!(<Value<'_> as ToSql>::accepts(&Type::TEXT) && <Value<'_> as ToSql>::accepts(&Type::NUMERIC));
        assert!(!<Value<'_> as ToSql>::accepts(&Type::INT4));
        assert!(
            <Number as FromSql<'_>>::accepts(&Type::NUMERIC)
                && !<Number as FromSql<'_>>::accepts(&Type::INT8)
        );
    }
}
