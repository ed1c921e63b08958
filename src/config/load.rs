//! Finds the sources, merges them by strength, reads every key, and reports all faults at once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::environment::{FILE_VARIABLE, Variables};
use super::layer::{Layer, Layers};
use super::reader::{Effective, Reader};
use super::unknown::unknown_keys;
use super::{
    BrokerSection, BrokerTarget, Config, DatabaseSection, DatabaseTarget, Fault, Faults,
    HttpSection, LogSection, Origin, OutboxSection, QuarantineSection, RelaySection, RetrySection,
    TargetError, file, rivals,
};

/// Read if it exists and no other file is named.
pub const DEFAULT_FILE: &str = "/etc/outbox-relay/outbox-relay.toml";

/// Where settings may come from, the strongest first: flags, the environment's own variables, the
/// file, the environment's conventional variables.
#[derive(Clone)]
pub struct Sources {
    /// Flags that set a key.
    pub flags: Vec<Assignment>,
    /// The process's variables.
    pub environment: Vec<(OsString, OsString)>,
    /// `--config`.
    pub file: Option<PathBuf>,
    /// Read if it exists and neither `--config` nor `OUTBOX_RELAY_CONFIG` names another.
    pub default_file: PathBuf,
}

/// One key set on the command line.
#[derive(Clone)]
pub struct Assignment {
    /// The flag, for error messages.
    pub flag: String,
    /// `section.key`.
    pub key: String,
    /// As text.
    pub value: String,
}

/// Which servers a command cannot do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// PostgreSQL.
    pub database: bool,
    /// RabbitMQ.
    pub broker: bool,
}

/// A configuration without faults, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Every key with its effective value and origin, in the order of the documentation.
    pub effective: Vec<Effective>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
}

impl Sources {
    /// The environment of this process.
    #[must_use]
    pub fn of_process(flags: Vec<Assignment>, file: Option<PathBuf>) -> Self {
        Self {
            flags,
            environment: std::env::vars_os().collect(),
            file,
            default_file: PathBuf::from(DEFAULT_FILE),
        }
    }

    /// Reads everything. A server that is needed must be named, and its secret files must be
    /// readable; one that is not needed is judged by what is written only.
    ///
    /// # Errors
    /// [`Faults`] holds all that is wrong, not only the first.
    pub fn load(&self, needs: Needs) -> Result<Loaded, Faults> {
        let mut faults = Vec::new();
        let variables = Variables(&self.environment);
        let chosen = self.choose_file(&variables);
        let file_layer = match &chosen {
            Some((path, named_by)) => file::read(path, named_by.clone()),
            None => Ok(Layer::default()),
        };
        let broken_file = file_layer.is_err();
        let mut layers = Layers(vec![
            variables.conventional(&mut faults),
            file_layer.unwrap_or_else(|mut found| {
                faults.append(&mut found);
                Layer::default()
            }),
            variables.own(&mut faults),
            self.flag_layer(&mut faults),
        ]);
        let unread: Vec<String> = faults.iter().map(|fault| fault.key.clone()).collect();
        let written = layers.0.clone();
        rivals::settle(&mut layers, &mut faults);
        let merged = layers.merged().map_err(|error| {
            Faults(vec![Fault {
                key: String::new(),
                origin: None,
                problem: error.to_string(),
            }])
        })?;
        let mut reader = Reader::new(&layers, merged);
        let config = Config::read(&mut reader);
        for layer in &written {
            faults.append(&mut unknown_keys(layer, &reader.known));
        }
        variables.near_misses(reader.known.iter().copied(), &mut faults);
        faults.append(&mut reader.faults);
        reader.distrust(&unread);
        if !broken_file {
            check_servers(&config, needs, &mut reader);
            faults.append(&mut reader.faults);
        }
        let effective = std::mem::take(&mut reader.effective);
        if faults.is_empty() {
            Ok(Loaded {
                config,
                effective,
                file: chosen.map(|(path, _)| path),
            })
        } else {
            faults.sort_by_key(place);
            Err(Faults(faults))
        }
    }

    fn choose_file(&self, variables: &Variables<'_>) -> Option<(PathBuf, Option<Origin>)> {
        if let Some(path) = &self.file {
            return Some((path.clone(), Some(Origin::Flag("--config".to_owned()))));
        }
        if let Some(path) = variables.get(FILE_VARIABLE) {
            let origin = Origin::Variable(FILE_VARIABLE.to_owned());
            return Some((PathBuf::from(path), Some(origin)));
        }
        let default: &Path = &self.default_file;
        // In a folder that may not be searched it may exist: to ignore it would ignore settings.
        let may_exist = default.try_exists().unwrap_or(true);
        may_exist.then(|| (default.to_owned(), None))
    }

    fn flag_layer(&self, faults: &mut Vec<Fault>) -> Layer {
        let mut layer = Layer::default();
        for Assignment { flag, key, value } in &self.flags {
            let origin = Origin::Flag(flag.clone());
            // Only --database-url may carry one; it says so itself.
            let secret = ["url", "password"].map(|name| key.ends_with(&format!(".{name}")));
            if flag.starts_with("--set") && secret.contains(&true) {
                faults.push(Fault {
                    key: key.clone(),
                    origin: Some(origin),
                    problem: "a command line is visible to every user of the machine: use the \
                              environment, or the key's _file twin"
                        .to_owned(),
                });
            } else {
                layer.insert_text(key, value, origin);
            }
        }
        layer
    }
}

impl Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            database: DatabaseSection::read(reader),
            broker: BrokerSection::read(reader),
            outbox: OutboxSection::read(reader),
            relay: RelaySection::read(reader),
            retry: RetrySection::read(reader),
            quarantine: QuarantineSection::read(reader),
            http: HttpSection::read(reader),
            log: LogSection::read(reader),
        }
    }

    /// Where PostgreSQL is, to be resolved before every connect.
    #[must_use]
    pub fn database_target(&self) -> DatabaseTarget {
        DatabaseTarget::new(self.database.clone())
    }

    /// Where RabbitMQ is, to be resolved before every connect.
    #[must_use]
    pub fn broker_target(&self) -> BrokerTarget {
        BrokerTarget::new(self.broker.clone())
    }
}

/// The keys without which an address cannot be judged.
const ADDRESS: [&str; 14] = [
    "url",
    "url_file",
    "host",
    "port",
    "user",
    "password",
    "password_file",
    "dbname",
    "vhost",
    "sslmode",
    "ca_file",
    "cert_file",
    "key_file",
    "auth",
];

/// Resolves both addresses once, so that a mistake in them is told now and not at the first
/// connect.
fn check_servers(config: &Config, needs: Needs, reader: &mut Reader<'_>) {
    let named = |section: &str, reader: &Reader<'_>| {
        ["url", "url_file", "host"]
            .iter()
            .any(|name| reader.is_set(&format!("{section}.{name}")))
    };
    let secret_files = |section: &str, reader: &Reader<'_>| {
        ["url_file", "password_file"]
            .iter()
            .any(|name| reader.is_set(&format!("{section}.{name}")))
    };
    let wanted = |section: &str, needed: bool, reader: &Reader<'_>| {
        let judged = needed || (named(section, reader) && !secret_files(section, reader));
        judged && !reader.is_faulty(section, &ADDRESS)
    };
    if wanted("database", needs.database, reader) {
        report(config.database_target().resolve().err(), reader);
    }
    if wanted("broker", needs.broker, reader) {
        report(config.broker_target().resolve().err(), reader);
    }
}

fn report(error: Option<TargetError>, reader: &mut Reader<'_>) {
    for (key, problem) in error.into_iter().flat_map(|error| error.problems) {
        reader.fault(key, problem);
    }
}

/// The file's faults by line, then variables, flags, and what is missing.
fn place(fault: &Fault) -> (u8, usize, String) {
    match &fault.origin {
        Some(Origin::File { line, .. }) => (0, *line, String::new()),
        Some(Origin::Conventional(name) | Origin::Variable(name)) => (1, 0, name.clone()),
        Some(Origin::Flag(name)) => (2, 0, name.clone()),
        Some(Origin::Default) | None => (3, 0, String::new()),
    }
}
