//! The commands, one file each, thin: arguments in, exit code out.

pub mod exit;
pub mod grants;
pub mod migrate;
