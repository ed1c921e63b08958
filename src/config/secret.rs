//! A value that must never be printed, given as such or as a file that holds it.
//!
//! A file is read again at every use, so that a rotated password needs no restart.

use std::io;
use std::path::PathBuf;

use secrecy::SecretString;

/// A password, or a URL that may hold one.
#[derive(Clone, Debug)]
pub enum Secret {
    /// Given in the configuration itself.
    Value(SecretString),
    /// Given by the key's `_file` twin: the file's content without its final line break.
    File(PathBuf),
}

/// A secret file that cannot be used. Never holds any of its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Missing, not readable, or not UTF-8.
    #[error("cannot read secret file {}: {source}", path.display())]
    Unreadable {
        /// The file named in the configuration.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Nothing in it.
    #[error("secret file {} is empty", path.display())]
    Empty {
        /// The file named in the configuration.
        path: PathBuf,
    },
}

impl Secret {
    /// The secret as it is now. Reads the file anew each time; call it at every connect.
    ///
    /// # Errors
    /// [`SecretError`] names the file and why it cannot be used.
    pub fn read(&self) -> Result<SecretString, SecretError> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::File(path) => read_file(path.clone()),
        }
    }
}

fn read_file(path: PathBuf) -> Result<SecretString, SecretError> {
    let content = match std::fs::read_to_string(&path) {
        Ok(content) => content,
        Err(source) => return Err(SecretError::Unreadable { path, source }),
    };
    // Editors and `echo` end a file with a line break that is no part of the secret. Other
    // blanks may be.
    let secret = content.strip_suffix('\n').unwrap_or(&content);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    if secret.is_empty() {
        return Err(SecretError::Empty { path });
    }
    Ok(SecretString::from(secret))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_file_is_read_again_at_every_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let secret = Secret::File(path.clone());
        for (content, expected) in [
            ("first\n", "first"),
            (" second \r\n", " second "),
            ("third\n\n", "third\n"),
            ("0123", "0123"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(secret.read().unwrap().expose_secret(), expected);
        }
    }

    #[test]
    fn an_unusable_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let missing = Secret::File(path.clone()).read().unwrap_err().to_string();
        assert_eq!(
            missing,
            format!(
                "cannot read secret file {}: No such file or directory (os error 2)",
                path.display()
            )
        );
        std::fs::write(&path, "\n").unwrap();
        let empty = Secret::File(path.clone()).read().unwrap_err().to_string();
        assert_eq!(empty, format!("secret file {} is empty", path.display()));
    }

    #[test]
    fn debug_output_hides_the_value() {
        let secret = Secret::Value(SecretString::from("canary"));
        assert!(!format!("{secret:?}").contains("canary"));
    }
}
