//! From `[database]` to what connecting needs: the URL's parameters with the keys on top of them.
//!
//! What the parameters mean is `libpq_meaning`'s business.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use secrecy::{ExposeSecret, SecretString};

use super::database_access::DatabaseAccess;
use super::libpq::Parameters;
use super::libpq_meaning::Meaning;
use super::setting::Setting;
use super::{DatabaseSection, Secret, TargetError};

/// `[database]`, to be resolved before every connect. Clones are one: what one takes up counts
/// for all.
#[derive(Clone, Debug)]
pub struct DatabaseTarget(Arc<RwLock<DatabaseSection>>);

impl DatabaseTarget {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(section: DatabaseSection) -> Self {
        Self(Arc::new(RwLock::new(section)))
    }

    /// Takes over what may change while connections stand: address and password. It counts from
    /// the next connect on.
    pub fn take_up(&self, new: &DatabaseSection) {
        let mut section = self.0.write().unwrap_or_else(PoisonError::into_inner);
        section.url.clone_from(&new.url);
        section.password.clone_from(&new.password);
    }

    /// The address and credentials as they are now. Reads the secret files anew, which blocks for
    /// as long as their file system does.
    ///
    /// # Errors
    /// [`TargetError`] names every key that cannot be used, and never holds a secret.
    pub fn resolve(&self) -> Result<DatabaseAccess, TargetError> {
        let section = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let section = &section;
        let url_key = match section.url {
            Some(Secret::File(_)) => "database.url_file",
            Some(Secret::Value(_)) | None => "database.url",
        };
        let mut parameters = match &section.url {
            Some(url) => {
                let text = url
                    .read()
                    .map_err(|e| TargetError::one(url_key, e.to_string()))?;
                Parameters::parse(text.expose_secret())
                    .map_err(|problem| TargetError::one(url_key, problem))?
            }
            None if section.host.is_empty() => {
                return Err(TargetError::one(
                    "database.url",
                    "missing: set it or database.host, or the variable DATABASE_URL",
                ));
            }
            None => Parameters::default(),
        };
        section
            .overlay(&mut parameters)
            .map_err(|problem| TargetError::one(url_key, problem))?;
        let password = match &section.password {
            Some(secret) => Some(secret.read().map_err(|error| {
                let key = match secret {
                    Secret::File(_) => "database.password_file",
                    Secret::Value(_) => "database.password",
                };
                TargetError::one(key, error.to_string())
            })?),
            None => parameters.get("password").map(SecretString::from),
        };
        Meaning::of(&parameters)
            .access(section, password.as_ref())
            .map_err(|problems| TargetError {
                problems: problems.into_iter().map(|p| (url_key, p)).collect(),
            })
    }
}

impl DatabaseSection {
    /// Puts the keys on top of the URL's parameters.
    fn overlay(&self, parameters: &mut Parameters) -> Result<(), String> {
        let path = |path: &PathBuf| path.display().to_string();
        if !self.host.is_empty() {
            for name in ["host", "hostaddr", "port"] {
                parameters.remove(name);
            }
            parameters.set("host", self.host.join(","))?;
        }
        let ports: Vec<String> = self.port.iter().map(ToString::to_string).collect();
        let given = [
            ("port", Some(ports.join(",")).filter(|p| !p.is_empty())),
            ("user", self.user.clone()),
            ("dbname", self.dbname.clone()),
            ("sslmode", self.sslmode.map(|mode| mode.shown())),
            ("sslrootcert", self.ca_file.as_ref().map(path)),
            ("sslcert", self.cert_file.as_ref().map(path)),
            ("sslkey", self.key_file.as_ref().map(path)),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                parameters.set(name, value)?;
            }
        }
        Ok(())
    }
}
