//! The store on PostgreSQL 13 to 18: sessions, schema, and all SQL.

pub mod connect;
pub mod direct;
pub mod explain;
pub mod facts;
mod gate;
pub mod grants;
pub mod ident;
pub mod inbox_entries;
pub mod inbox_grants;
mod instance;
mod leases;
mod measure;
pub mod operator;
pub mod pause;
pub mod quarantine;
mod read_sql;
pub mod reader;
pub mod remaining;
pub mod resend;
mod row;
pub mod schema;
pub mod scratch;
pub mod session;
mod settle_sql;
pub mod settler;
pub mod sqlstate;
pub mod status;
pub mod store;
mod sweep;
pub mod tls;
mod values;

pub use store::PgStore;
