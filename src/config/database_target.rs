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
use super::{DatabaseSection, Secret, SslMode, TargetError};

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
        let password = section.secret(&parameters)?;
        let unused = section
            .unused_certificate(&parameters)
            .map(|(key, problem)| (key.unwrap_or(url_key), problem));
        match (
            Meaning::of(&parameters).access(section, password.as_ref()),
            unused,
        ) {
            (Ok(access), None) => Ok(access),
            (found, unused) => {
                let problems = found.err().unwrap_or_default();
                let problems = problems.into_iter().map(|problem| (url_key, problem));
                Err(TargetError {
                    problems: problems.chain(unused).collect(),
                })
            }
        }
    }
}

impl DatabaseSection {
    fn secret(&self, parameters: &Parameters) -> Result<Option<SecretString>, TargetError> {
        let Some(secret) = &self.password else {
            return Ok(parameters.get("password").map(SecretString::from));
        };
        let key = match secret {
            Secret::File(_) => "database.password_file",
            Secret::Value(_) => "database.password",
        };
        let read = secret.read();
        read.map(Some)
            .map_err(|error| TargetError::one(key, error.to_string()))
    }

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

    /// A certificate that nobody would look at, as nothing is encrypted; its key, unless it stands in
    /// the URL.
    fn unused_certificate(
        &self,
        parameters: &Parameters,
    ) -> Option<(Option<&'static str>, String)> {
        let disabled = SslMode::from_text(parameters.get("sslmode")?) == Ok(SslMode::Disable);
        let given = [
            ("sslrootcert", "database.ca_file", self.ca_file.is_some()),
            ("sslcert", "database.cert_file", self.cert_file.is_some()),
            ("sslkey", "database.key_file", self.key_file.is_some()),
        ];
        let (_, key, own) = given
            .into_iter()
            .find(|(name, ..)| disabled && parameters.get(name).is_some_and(|v| v != "system"))?;
        let problem = "certificates are given, but sslmode=disable does not speak TLS: write \
                       sslmode=verify-full, or leave them out";
        Some((own.then_some(key), problem.to_owned()))
    }
}
