//! Converts a record's fields to the values of columns and back.

use bytes::Bytes;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use super::values::{Number, Value};
use lambda_idempotency_core::store::{
    Record,
    toolkit::{self as codec, Field, Fields, NOT_IN_RANGE, Unreadable},
};

/// The type of the field's column. Texts that others choose are stored as bytes, because text can't hold the NUL
/// character.
pub(super) const fn type_of(field: Field) -> Type {
    match field {
        Field::Version | Field::Attempt => Type::INT8,
        Field::Generation | Field::ClaimedAt | Field::LeaseUntil | Field::ExpiresAt | Field::Length => {
            Type::NUMERIC
        }
        Field::Id | Field::Status | Field::Mark | Field::Execution | Field::Encoding => Type::TEXT,
        Field::Owner
        | Field::Fingerprint
        | Field::RequestId
        | Field::Trace
        | Field::Sha256
        | Field::Response => Type::BYTEA,
    }
}

/// Returns the value of `record` in the field's column.
pub(super) fn value(field: Field, record: &Record) -> Value<'_> {
    codec::value(field, record).map_or(Value::Null, Into::into)
}

/// Decodes the record in `row`.
pub(super) fn decode(row: &Row) -> Result<Record, Unreadable> {
    codec::decode(&mut Columns(row))
}

/// A row's columns.
struct Columns<'r>(&'r Row);

impl<'r> Columns<'r> {
    fn get<T: FromSql<'r>>(&self, field: Field) -> Result<Option<T>, &'static str> {
        self.0.try_get(field.name()).map_err(|_| "has the wrong type or is out of range")
    }
}

impl Fields for Columns<'_> {
    fn has(&self, field: Field) -> bool {
        !matches!(self.0.try_get(field.name()), Ok(None::<Anything>))
    }

    fn number(&self, field: Field) -> Result<Option<u64>, &'static str> {
        if type_of(field) == Type::INT8 {
            let number: Option<i64> = self.get(field)?;
            return number.map(u64::try_from).transpose().map_err(|_| NOT_IN_RANGE);
        }
        Ok(self.get::<Number>(field)?.map(|number| number.0))
    }

    fn text(&self, field: Field) -> Result<Option<&str>, &'static str> {
        if type_of(field) == Type::TEXT {
            return self.get(field);
        }
        self.bytes(field)?.map(std::str::from_utf8).transpose().map_err(|_| "isn't UTF-8")
    }

    fn bytes(&self, field: Field) -> Result<Option<&[u8]>, &'static str> {
        self.get(field)
    }

    fn take_response(&mut self) -> Result<Option<Bytes>, &'static str> {
        Ok(self.bytes(Field::Response)?.map(Bytes::copy_from_slice))
    }
}

/// A non-null value of any type.
struct Anything;

impl<'a> FromSql<'a> for Anything {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_has_a_column_for_each_field() {
        let schema = include_str!("schema.sql");
        for field in Field::ALL {
            assert!(
                schema.lines().any(|line| line.trim().starts_with(&format!("{} ", field.name()))),
                "{field:?}"
            );
        }
    }
}
