//! The store on PostgreSQL 13 to 18: sessions, schema, and all SQL.

pub mod connect;
pub mod grants;
pub mod ident;
pub mod schema;
pub mod session;
pub mod sqlstate;
pub mod tls;
