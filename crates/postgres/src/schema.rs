//! The table's name, and the SQL that creates it.

use std::fmt;

use lambda_idempotency_core::{Error, ErrorKind};

/// The SQL that creates a table, with the default names.
const SCHEMA: &str = include_str!("schema.sql");
/// The maximum number of characters in a table's name. PostgreSQL cuts names at 63 characters, and the names of the
/// index and the marker table are longer than the table's name.
const LONGEST_NAME: usize = 50;

/// A table's name, validated, with a schema if one was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableName {
    schema: Option<String>,
    name: String,
}

impl TableName {
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        for part in schema.iter().chain([&table]) {
            let begins = part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            let goes_on = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !begins || !goes_on || part.len() > LONGEST_NAME {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "the table's name {name:?} isn't valid: use TABLE or SCHEMA.TABLE, each of ASCII letters, \
                         digits and _, not starting with a digit, at most {LONGEST_NAME} characters"
                    ),
                ));
            }
        }
        Ok(Self { schema: schema.map(str::to_owned), name: table.to_owned() })
    }

    /// Whether the name has a schema.
    pub(super) const fn has_schema(&self) -> bool {
        self.schema.is_some()
    }

    /// The same table in `schema`, which may have any name.
    #[must_use]
    pub(super) fn in_schema(&self, schema: String) -> Self {
        Self { schema: Some(schema), name: self.name.clone() }
    }

    fn qualified(&self, suffix: &str) -> String {
        let name = format!("\"{}{suffix}\"", self.name);
        match &self.schema {
            Some(schema) => format!("\"{}\".{name}", schema.replace('"', "\"\"")),
            None => name,
        }
    }

    /// The name without its schema. It needs no quotes in a string.
    pub(super) fn bare(&self) -> &str {
        &self.name
    }

    /// The quoted name as a string literal, for `::regclass`.
    pub(super) fn literal(&self) -> String {
        format!("'{}'", self.to_string().replace('\'', "''"))
    }

    /// The quoted name of the table that holds the schema's version.
    pub(super) fn marker(&self) -> String {
        self.qualified("_schema")
    }

    /// The name as the user wrote it.
    pub(super) fn plain(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// The SQL that creates the table.
    pub(super) fn schema_sql(&self) -> String {
        // First replace the table's own name, which the other names don't contain: a schema may be called `idempotency`.
        SCHEMA
            .replace("\"idempotency\"", "\0")
            .replace("\"idempotency_sweep_hour\"", &format!("\"{}_sweep_hour\"", self.name))
            .replace("\"idempotency_schema\"", &self.marker())
            .replace('\0', &self.to_string())
    }
}

/// Writes the quoted name, for SQL.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_are_checked_and_quoted() {
        let name = |text| TableName::new(text).map(|name| name.to_string());
        assert_eq!(name("idempotency").unwrap(), "\"idempotency\"");
        assert_eq!(name("Shop.records_2").unwrap(), "\"Shop\".\"records_2\"");
        let long = "x".repeat(51);
        for wrong in ["", ".t", "s.", "a.b.c", "1t", "t-t", "t t", "t\"", "t;", "größe", &long] {
            assert_eq!(name(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn schemas_of_any_name_are_quoted() {
        let name = TableName::new("records").unwrap().in_schema("we\"i'rd.$$".to_owned());
        assert_eq!(name.to_string(), r#""we""i'rd.$$"."records""#);
        assert_eq!(name.marker(), r#""we""i'rd.$$"."records_schema""#);
        assert_eq!(name.literal(), r#"'"we""i''rd.$$"."records"'"#);
        assert!(name.schema_sql().contains(r#"CREATE TABLE IF NOT EXISTS "we""i'rd.$$"."records" ("#));
    }

    #[test]
    fn schemas_may_have_the_tables_name() {
        let sql = TableName::new("idempotency.idempotency").unwrap().schema_sql();
        assert!(sql.contains("INSERT INTO \"idempotency\".\"idempotency_schema\" (version)"), "{sql}");
        assert_eq!(sql.matches("\"idempotency\".\"idempotency\".").count(), 0, "{sql}");
    }

    #[test]
    fn schema_uses_the_tables_name_everywhere() {
        let sql = TableName::new("shop.records").unwrap().schema_sql();
        assert!(!sql.contains("\"idempotency"), "{sql}");
        assert!(sql.contains("CREATE INDEX IF NOT EXISTS \"records_sweep_hour\" ON \"shop\".\"records\""));
        assert!(sql.contains("INSERT INTO \"shop\".\"records_schema\" (version)\n    SELECT 3 WHERE"));
    }
}
