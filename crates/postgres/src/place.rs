//! Finds the schema of a table whose name has none, once, by the default search path.
//!
//! A session's own search path can't be trusted. Behind a transaction pooler, another client may have left a path in
//! the session, and then the same unqualified name means another table: a duplicate would find no record there, and
//! its handler would run again. So the store looks the name up in a transaction of its own, under the path that the
//! role, the database or the server sets (`SET LOCAL search_path TO DEFAULT`). All its statements then name the schema,
//! in a user's transaction too, whose path the store never changes.
//!
//! A temporary table of the same name doesn't count. PostgreSQL would find it first, under any path.
//!
//! Functions and operators have no schema in the statements. PostgreSQL finds them in `pg_catalog` first, unless a path
//! names `pg_catalog` after another schema.

use std::sync::{Arc, Mutex, PoisonError};

use deadpool_postgres::ClientWrapper;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::{
    Inner,
    fault::Fault,
    schema::TableName,
    statements::{LockWait, Statements, Within},
};

/// A table with its schema, and its statements.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) table: TableName,
    pub(super) statements: Statements,
    /// The statements for a user's transaction.
    pub(super) in_transaction: Statements,
}

impl Place {
    fn of(table: TableName, wait: LockWait) -> Arc<Self> {
        Arc::new(Self {
            statements: Statements::new(&table, LockWait::OfSession, Within::Own),
            in_transaction: Statements::new(&table, wait, Within::Users),
            table,
        })
    }
}

/// The table's place, once it's known.
#[derive(Debug)]
pub(super) struct Places {
    /// The table's name, as the user wrote it.
    name: TableName,
    wait: LockWait,
    known: Mutex<Option<Arc<Place>>>,
}

impl Places {
    /// `wait` says where the lock timeout of the statements in a user's transaction comes from.
    pub(super) fn new(name: TableName, wait: LockWait) -> Self {
        let known = name.has_schema().then(|| Place::of(name.clone(), wait));
        Self { name, wait, known: Mutex::new(known) }
    }

    /// The table's place, if it's known.
    pub(super) fn known(&self) -> Option<Arc<Place>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, table: TableName) -> Arc<Place> {
        let place = Place::of(table, self.wait);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&place));
        place
    }

    /// Whether the table is still known to be at `place`.
    pub(super) fn is_known(&self, place: &Arc<Place>) -> bool {
        self.known().is_some_and(|known| Arc::ptr_eq(&known, place))
    }

    /// Forgets `place`, because there's no table any more. Returns whether the table may be in another schema now.
    pub(super) fn forget(&self, place: &Arc<Place>) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.name.has_schema() && known.as_ref().is_some_and(|known| Arc::ptr_eq(known, place)) {
            *known = None;
        }
        !self.name.has_schema()
    }

    /// The SQL that finds the table's schema, and the one in which to create the table. It's one transaction, because
    /// it's sent as one simple query.
    ///
    /// `current_schemas(false)` leaves out the schemas that every path has, such as the one for temporary tables.
    fn search(&self) -> String {
        format!(
            "SET LOCAL search_path TO DEFAULT; \
             WITH path AS (SELECT n.oid, n.nspname, s.at \
             FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, at) \
             JOIN pg_namespace AS n ON n.nspname = s.name WHERE left(n.nspname, 8) <> 'pg_temp_') \
             SELECT (SELECT p.nspname FROM path AS p JOIN pg_class AS c ON c.relnamespace = p.oid \
             WHERE c.relname = '{}' AND c.relkind IN ('r', 'p', 'v', 'f') ORDER BY p.at LIMIT 1), \
             (SELECT p.nspname FROM path AS p ORDER BY p.at LIMIT 1)",
            self.name.bare()
        )
    }
}

/// Where a table is, and where to create it if it's nowhere.
pub(super) struct Found {
    pub(super) place: Option<Arc<Place>>,
    pub(super) home: Option<TableName>,
}

impl Inner {
    /// Looks for the table, unless its place is known.
    pub(super) async fn find(&self, client: &ClientWrapper) -> Result<Found, Fault> {
        if let Some(place) = self.places.known() {
            return Ok(Found { place: Some(place), home: None });
        }
        let rows = client.simple_query(&self.places.search()).await;
        let rows = rows.map_err(|error| Fault::sent(&error).of_question())?;
        let row = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let schema = |at| row.and_then(|row: &SimpleQueryRow| row.try_get(at).ok().flatten());
        let in_schema = |schema: &str| self.places.name.in_schema(schema.to_owned());
        Ok(Found {
            place: schema(0).map(|schema| self.places.keep(in_schema(schema))),
            home: schema(1).map(in_schema),
        })
    }

    /// Remembers where the table was created.
    pub(super) fn created_at(&self, table: TableName) -> Arc<Place> {
        self.places.keep(table)
    }
}
