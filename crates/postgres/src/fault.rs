//! Maps PostgreSQL's errors to the store's: what happened, whether the write may have been applied anyway, and
//! how to fix it.
//!
//! It never keeps an error of the client, because the server's details in it may quote rows. It keeps the SQLSTATE. If
//! the messages of an error's class never quote a value, it also keeps the message's first line.

use std::{error::Error as StdError, fmt, io};

use deadpool::managed::{PoolError, TimeoutType};
use tokio_postgres::error::{DbError, Severity};

use super::{source::Unconnected, tls};
use lambda_idempotency_core::store::{
    StoreError, StoreErrorKind,
    toolkit::{innermost, sentence},
};

/// A client error, reduced to its safe parts.
#[derive(Debug)]
pub(super) struct Fault {
    class: Class,
    cause: Cause,
    maybe_applied: bool,
    /// Whether to close the connection.
    pub(super) ends_connection: bool,
}

/// The category of an error. It determines the message and the store error's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// All connections were in use for too long.
    NoneFree,
    /// The connection couldn't be made.
    NotReached,
    /// The server has no TLS, or its certificate isn't trusted.
    Tls,
    /// The user or the password was rejected.
    Credentials,
    /// The user's code that returns the password failed.
    NoPassword,
    /// The database doesn't exist.
    MissingDatabase,
    /// The connection was lost.
    Lost,
    /// The request timed out.
    TimedOut,
    /// The server failed, is out of space or connections, or is shutting down.
    ServerError,
    /// The table's columns have changed, so the statement must be prepared again, in another session.
    Stale,
    /// The server rejects writes: a standby, usually after a fail-over.
    ReadOnly,
    /// Another transaction has the row locked.
    Conflict,
    /// The table doesn't exist.
    MissingTable,
    /// The table's columns or keys don't match the statement.
    Unfit,
    /// The user lacks a permission.
    Permission,
    /// A pooler sends, or could send, prepared statements to sessions that didn't prepare them.
    Pooler,
    /// The server has no time limit for a statement, has one that's too long, or rejects the limit as a startup option.
    Unlimited,
    /// The connection needs channel binding, which isn't available.
    Unbound,
    /// An earlier statement of the transaction failed.
    FailedTransaction,
    /// The user's transaction is read-only, although the server isn't a standby.
    ReadOnlyTransaction,
    /// The role of the user's transaction lacks a permission.
    TransactionRole,
    /// The server rejects the COMMIT of the user's transaction, for example because of a deferred constraint.
    Commit,
    /// A concurrent transaction prevents the COMMIT of the user's transaction.
    ConflictingCommit,
    /// The content is too large for a row, or has characters that the database can't store.
    Unstorable,
    /// The server rejects the request for another reason.
    Refused,
}

impl Class {
    const fn kind(self) -> StoreErrorKind {
        match self {
            Self::NoneFree
            | Self::NotReached
            | Self::Lost
            | Self::TimedOut
            | Self::ServerError
            | Self::Stale
            | Self::NoPassword
            | Self::ReadOnly => StoreErrorKind::Unavailable,
            Self::Conflict | Self::ConflictingCommit => StoreErrorKind::Conflict,
            Self::Unstorable => StoreErrorKind::Unstorable,
            Self::Tls
            | Self::Credentials
            | Self::MissingDatabase
            | Self::MissingTable
            | Self::Unfit
            | Self::Permission
            | Self::Pooler
            | Self::Unlimited
            | Self::Unbound
            | Self::FailedTransaction
            | Self::ReadOnlyTransaction
            | Self::TransactionRole
            | Self::Commit
            | Self::Refused => StoreErrorKind::Rejected,
        }
    }

    /// The class of an error with this SQLSTATE ("PostgreSQL Error Codes", appendix A of its documentation).
    fn of_code(code: &str) -> Self {
        match code {
            // serialization_failure, deadlock_detected, lock_not_available.
            "40001" | "40P01" | "55P03" => Self::Conflict,
            "25006" => Self::ReadOnly,
            "25P02" => Self::FailedTransaction,
            // undefined_table, invalid_schema_name.
            "42P01" | "3F000" => Self::MissingTable,
            // undefined_column, undefined_function, datatype_mismatch, invalid_column_reference (ON CONFLICT finds no
            // unique key).
            "42703" | "42883" | "42804" | "42P10" => Self::Unfit,
            "42501" => Self::Permission,
            // invalid_sql_statement_name, duplicate_prepared_statement.
            "26000" | "42P05" => Self::Pooler,
            "3D000" => Self::MissingDatabase,
            // string_data_right_truncation, character_not_in_repertoire, untranslatable_character.
            "22001" | "22021" | "22P05" => Self::Unstorable,
            // feature_not_supported.
            "0A000" => Self::Stale,
            // idle_in_transaction_session_timeout, transaction_timeout: a process was frozen in its
            // transaction, and the server rolled it back.
            "25P03" | "25P04" => Self::ServerError,
            _ => match &code[..code.len().min(2)] {
                "28" => Self::Credentials,
                "08" => Self::Lost,
                // Program limit exceeded: a row, a value or an index entry is too large.
                "54" => Self::Unstorable,
                // Insufficient resources, operator intervention, system error, internal error, transaction rollback.
                "53" | "57" | "58" | "XX" | "40" => Self::ServerError,
                _ => Self::Refused,
            },
        }
    }

    /// Whether a message of this class can quote only names, never values.
    const fn is_quotable(self) -> bool {
        !matches!(self, Self::Refused | Self::Conflict | Self::Unstorable | Self::Commit)
    }
}

/// The safe part of a client's error: the `source()` of the store's error.
#[derive(Debug)]
pub(super) struct Cause {
    text: String,
    code: Option<String>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = &self.code {
            write!(f, "SQLSTATE {code}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl StdError for Cause {}

impl Fault {
    /// The pool returned no connection, so nothing was sent.
    pub(super) fn connecting(error: &PoolError<Unconnected>) -> Self {
        match error {
            PoolError::Backend(Unconnected::Server(error)) => Self::of_connection(error),
            PoolError::Backend(Unconnected::NoPassword(error)) => Self::unsent(
                Class::NoPassword,
                &format!("the code that returns the password failed: {error}"),
            ),
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => {
                Self::unsent(Class::NotReached, "the connection timed out")
            }
            PoolError::Timeout(TimeoutType::Wait) => Self::none_free(),
            PoolError::Closed => Self::unsent(Class::NotReached, "the pool is closed"),
            _ => Self::unsent(Class::NotReached, "the pool's set-up failed"),
        }
    }

    /// No connection was free in time, so nothing was sent.
    pub(super) fn none_free() -> Self {
        Self::unsent(Class::NoneFree, "waiting for a free connection timed out")
    }

    /// The server had closed each connection that the call tried, so nothing was sent.
    pub(super) fn closed() -> Self {
        Self::unsent(Class::Lost, "the server closed the connection")
    }

    /// No connection was made in time, so nothing was sent.
    pub(super) fn not_reached() -> Self {
        Self::unsent(Class::NotReached, "the connection timed out")
    }

    /// The table, or the marker of its version, doesn't exist.
    pub(super) fn missing_table() -> Self {
        Self {
            ends_connection: false,
            ..Self::unsent(Class::MissingTable, "its schema version wasn't found")
        }
    }

    /// The server has no time limit for a statement, or one that's too long.
    pub(super) fn unlimited(why: &str) -> Self {
        Self::unsent(Class::Unlimited, why)
    }

    /// The server process that answers isn't the one that accepted the connection.
    pub(super) fn not_direct() -> Self {
        Self::unsent(Class::Pooler, "the process that answers isn't the one that accepted the connection")
    }

    /// Whether the server said that it ended the session, for example because it restarts.
    pub(super) fn has_ended(&self) -> bool {
        self.class == Class::ServerError && self.ends_connection
    }

    /// Whether the session ended before it answered: the connection was lost, or the server ended it.
    pub(super) fn is_lost(&self) -> bool {
        self.class == Class::Lost || self.has_ended()
    }

    /// Whether the other connections have probably ended too: this one did, or the request timed out.
    pub(super) fn others_may_have_ended(&self) -> bool {
        (self.is_lost() || self.class == Class::TimedOut) && self.ends_connection
    }

    pub(super) fn is_missing_table(&self) -> bool {
        self.class == Class::MissingTable
    }

    /// Several attempts didn't apply the write, because another writer changed the record during each attempt.
    pub(super) fn contended() -> Self {
        Self {
            ends_connection: false,
            ..Self::unsent(Class::Conflict, "other writers changed the record each time")
        }
    }

    /// After the preparation, too little time was left for the write, so it wasn't sent. The connection keeps the
    /// prepared statement for the next call.
    pub(super) fn prepared_too_late() -> Self {
        Self {
            ends_connection: false,
            ..Self::unsent(Class::TimedOut, "preparing the statement took too long")
        }
    }

    /// The response is larger than a row can hold, so nothing was sent.
    pub(super) fn too_large() -> Self {
        Self {
            ends_connection: false,
            ..Self::unsent(Class::Unstorable, "the response exceeds the maximum size of a row")
        }
    }

    /// A standby answered.
    pub(super) fn standby() -> Self {
        Self::unsent(Class::ReadOnly, "the server is in recovery")
    }

    /// Marks the error as definite: the statement writes nothing.
    #[must_use]
    pub(super) fn of_question(mut self) -> Self {
        self.maybe_applied = false;
        self
    }

    /// The failure of a statement of this library in a user's transaction, which has its own settings and role.
    ///
    /// A transaction of a standby doesn't get this far: the statement that takes the key's lock finds the standby.
    #[must_use]
    pub(super) fn in_users_transaction(mut self) -> Self {
        self.class = match self.class {
            Class::ReadOnly if self.cause.code.is_some() => Class::ReadOnlyTransaction,
            Class::Permission => Class::TransactionRole,
            class => class,
        };
        self
    }

    /// The failure of a user's COMMIT. Its cause is in what the user's code did in the transaction.
    #[must_use]
    pub(super) fn of_commit(mut self) -> Self {
        self.class = match self.class {
            _ if self.cause.code.is_none() => self.class,
            Class::FailedTransaction => self.class,
            class => match class.kind() {
                StoreErrorKind::Rejected | StoreErrorKind::Unstorable => Class::Commit,
                StoreErrorKind::Conflict => Class::ConflictingCommit,
                _ => class,
            },
        };
        self
    }

    /// Marks the error as ambiguous: the statement may have been applied, whatever the error says.
    #[must_use]
    pub(super) fn in_doubt(mut self) -> Self {
        self.maybe_applied = true;
        self.ends_connection = true;
        self
    }

    fn unsent(class: Class, text: &str) -> Self {
        let cause = Cause { text: text.to_owned(), code: None };
        Self { class, cause, maybe_applied: false, ends_connection: true }
    }

    fn of_connection(error: &tokio_postgres::Error) -> Self {
        if let Some(error) = error.as_db_error() {
            let fault = Self::of_server(error);
            // PgBouncer and Amazon RDS Proxy use these words when they reject startup options.
            let is_about_options = ["startup parameter", "command-line options"]
                .iter()
                .any(|words| error.message().contains(words));
            let class = if is_about_options { Class::Unlimited } else { fault.class };
            return Self { class, maybe_applied: false, ends_connection: true, ..fault };
        }
        let handshake = error.source().and_then(|source| source.downcast_ref::<tls::Failure>());
        // The client doesn't export its errors' kinds, so tell them apart by the text.
        let class = match error.to_string().as_str() {
            "error performing TLS handshake" if handshake.is_none_or(tls::Failure::is_refusal) => Class::Tls,
            "authentication error" if innermost(error).contains("channel binding") => Class::Unbound,
            // For example, the server wants an authentication method that the client doesn't support, or a password and
            // none is configured.
            "authentication error" | "invalid configuration" => Class::Credentials,
            _ => Class::NotReached,
        };
        Self::unsent(class, sentence(&innermost(error)))
    }

    /// The failure of a statement that was sent.
    pub(super) fn sent(error: &tokio_postgres::Error) -> Self {
        if let Some(error) = error.as_db_error() {
            return Self::of_server(error);
        }
        // If the client can't make sense of an answer, the error's source may quote that answer. So only keep the
        // source's text if it's a socket error, which quotes nothing.
        let socket = error.source().is_some_and(|source| source.is::<io::Error>());
        let text = if socket { innermost(error) } else { error.to_string() };
        let cause = Cause { text: sentence(&text).to_owned(), code: None };
        Self { class: Class::Lost, cause, maybe_applied: true, ends_connection: true }
    }

    /// The statement was sent, and timed out.
    pub(super) fn timed_out() -> Self {
        let cause = Cause { text: "the statement timed out".to_owned(), code: None };
        Self { class: Class::TimedOut, cause, maybe_applied: true, ends_connection: true }
    }

    fn of_server(error: &DbError) -> Self {
        let code = error.code().code();
        let class = Class::of_code(code);
        let severity = error.parsed_severity();
        // An ERROR rolls its transaction back, so nothing was written. The exceptions can come after a commit: errors
        // of a higher severity, which end the session; 57014, which can cancel a committed statement's wait for a
        // standby; 40003, statement_completion_unknown; and 08…, the connection errors.
        let is_error = severity == Some(Severity::Error)
            || severity.is_none() && error.severity().eq_ignore_ascii_case("error");
        let is_definite = is_error && !matches!(code, "57014" | "40003") && !code.starts_with("08");
        let text = if class.is_quotable() { sentence(error.message()) } else { "rejected by the server" };
        let ends_connection = !is_error || matches!(class, Class::ReadOnly | Class::Pooler | Class::Stale);
        let cause = Cause { text: text.to_owned(), code: Some(code.to_owned()) };
        Self { class, cause, maybe_applied: !is_definite, ends_connection }
    }

    /// Converts to the store's error, about `table` at `place`.
    pub(super) fn into_error(self, table: &str, place: &str) -> StoreError {
        let mut message = self.message(table, place);
        if let (StoreErrorKind::Rejected, Some(code)) = (self.class.kind(), &self.cause.code) {
            message.push_str(&format!(" (SQLSTATE {code})"));
        }
        StoreError::new(self.class.kind(), message).maybe_applied(self.maybe_applied).with_source(self.cause)
    }

    fn message(&self, table: &str, place: &str) -> String {
        let the_table = format!("table `{table}`{place}");
        let code = self.cause.code.as_deref().unwrap_or("unknown");
        match self.class {
            Class::NoneFree => {
                format!(
                    "no connection for {the_table} was free in time; allow more connections, or a longer connect \
                     timeout"
                )
            }
            Class::NotReached => {
                format!(
                    "the server of {the_table} couldn't be reached; check the host, the port and the network"
                )
            }
            Class::Tls => format!(
                "the TLS handshake with the server of {the_table} failed; give its root certificate with sslrootcert, \
                 or set sslmode=disable in a network that needs no TLS"
            ),
            Class::NoPassword => {
                format!(
                    "the password for the server of {the_table} is unknown, so nothing was sent; the cause says why"
                )
            }
            Class::Credentials => format!(
                "the server of {the_table} rejected the user or the password; check both, and the server's pg_hba.conf"
            ),
            Class::MissingDatabase => format!("the database for {the_table} doesn't exist; check its name"),
            Class::Lost => format!("the connection for {the_table} was lost"),
            Class::TimedOut => format!("{the_table} didn't answer in time"),
            Class::ServerError | Class::Stale => format!("the server failed to serve {the_table}"),
            Class::ReadOnly => format!(
                "the server of {the_table} is read-only: it is a standby, or has become one; connect to the primary"
            ),
            Class::Conflict => format!("another transaction currently holds the record in {the_table}"),
            Class::MissingTable => {
                format!(
                    "there is no {the_table}; create it with `idempotency table create`, or with its schema.sql. \
                     If its schema isn't in the default search_path of the user, name it: SCHEMA.TABLE"
                )
            }
            Class::Unfit => format!(
                "{the_table} doesn't match this version of the library; run `idempotency table check`"
            ),
            Class::Permission => format!(
                "the user lacks permissions on {the_table}; grant SELECT, INSERT, UPDATE and DELETE on it, and SELECT \
                 on its marker"
            ),
            Class::Pooler => format!(
                "a pooler in front of {the_table} runs statements in sessions that didn't prepare them; leave out \
                 `prepared=true`, which is for direct connections"
            ),
            Class::Unlimited => format!(
                "statements on {the_table} have no time limit at the server, or one that's too long, so an abandoned \
                 statement could still be applied later. Behind a pooler, add `timeouts=transaction` to the URL; or \
                 set statement_timeout and lock_timeout for the role, and add `timeouts=role`"
            ),
            Class::Unbound => format!(
                "the server of {the_table} offers no channel binding, which the URL requires. Channel binding needs \
                 TLS, scram-sha-256, and a certificate signed with ECDSA or RSA, but not RSA-PSS. Leave out \
                 `channel_binding=require` if there is a pooler in between"
            ),
            Class::FailedTransaction => format!(
                "an earlier statement of the transaction failed, so PostgreSQL can't commit any of the transaction's \
                 writes, to {the_table} or elsewhere; roll the transaction back, and return that statement's error"
            ),
            Class::ReadOnlyTransaction => format!(
                "the transaction is read-only (SQLSTATE {code}), so it can't write the record to {the_table}; leave \
                 out `SET TRANSACTION READ ONLY`, and check default_transaction_read_only of the session and the role"
            ),
            Class::TransactionRole => format!(
                "the transaction's role lacks permissions on {the_table} (SQLSTATE {code}); grant it SELECT, INSERT \
                 and UPDATE on the table, and SELECT on its marker. If the handler ran `SET ROLE`, let it run `RESET \
                 ROLE` before it returns"
            ),
            Class::Commit => format!(
                "PostgreSQL rejected the COMMIT of the handler's transaction (SQLSTATE {code}), for example because of \
                 a deferred constraint on the handler's own tables; the record of {the_table} isn't the cause"
            ),
            Class::ConflictingCommit => format!(
                "PostgreSQL rejected the COMMIT of the handler's transaction (SQLSTATE {code}), because of a \
                 concurrent transaction; retry"
            ),
            Class::Unstorable => format!(
                "{the_table} can't store the record: it is too large, or has characters that the database's encoding \
                 lacks"
            ),
            Class::Refused => format!("PostgreSQL rejected the statement on {the_table}"),
        }
    }
}

#[cfg(test)]
mod tests;
