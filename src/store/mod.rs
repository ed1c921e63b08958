//! store

pub mod error;
pub mod postgres;
