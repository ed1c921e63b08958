//! libpq's password file: `hostname:port:database:username:password` a line, `*` for anything,
//! the first line that fits (PostgreSQL manual, 34.16).

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::SecretString;

/// Whom the password is for, as libpq names it; a default socket counts as `localhost`.
pub(super) struct Entry<'a> {
    pub host: &'a str,
    pub port: u16,
    pub dbname: &'a str,
    pub user: &'a str,
}

/// The password of the first line that fits; `None` if none does.
///
/// # Errors
/// The file cannot be read, or others may read it too (libpq ignores such a file; an error says
/// so).
pub(super) fn look_up(path: &Path, wanted: &Entry<'_>) -> Result<Option<SecretString>, String> {
    let cannot = |error| format!("cannot read passfile {}: {error}", path.display());
    let metadata = std::fs::metadata(path).map_err(cannot)?;
    if is_open_to_others(&metadata) {
        return Err(format!(
            "passfile {} may be read by others: chmod 0600 it",
            path.display()
        ));
    }
    let text = std::fs::read_to_string(path).map_err(cannot)?;
    Ok(find(&text, wanted))
}

fn is_open_to_others(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o077 != 0
}

fn find(text: &str, wanted: &Entry<'_>) -> Option<SecretString> {
    let port = wanted.port.to_string();
    let keys = [wanted.host, &port, wanted.dbname, wanted.user];
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let fields = fields(line);
            let (password, patterns) = fields.split_last()?;
            let fits = patterns.len() == keys.len()
                && patterns
                    .iter()
                    .zip(keys)
                    .all(|(pattern, key)| pattern == "*" || pattern == key);
            fits.then(|| SecretString::from(password.as_str()))
        })
}

/// Splits at colons; a backslash takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        let taken = match c {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => rest.next(),
            c => Some(c),
        };
        if let Some(last) = fields.last_mut() {
            last.extend(taken);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    const FILE: &str = "# comment\n\
        db1:5432:app:relay:first\n\
        db1:*:*:relay:a\\:b\\\\c\n\
        [broken\n\
        *:*:*:*:last:with:colons\n";

    fn password(host: &str, port: u16) -> Option<String> {
        let wanted = Entry {
            host,
            port,
            dbname: "app",
            user: "relay",
        };
        find(FILE, &wanted).map(|secret| secret.expose_secret().to_owned())
    }

    #[test]
    fn the_first_line_that_fits_wins() {
        assert_eq!(password("db1", 5432).as_deref(), Some("first"));
        assert_eq!(password("db1", 5433).as_deref(), Some("a:b\\c"));
        assert_eq!(password("db2", 5432).as_deref(), Some("last:with:colons"));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pgpass");
        std::fs::write(&path, "*:*:*:*:canary\n").unwrap();
        let wanted = Entry {
            host: "h",
            port: 1,
            dbname: "d",
            user: "u",
        };
        for (mode, allowed) in [(0o640, false), (0o604, false), (0o600, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let found = look_up(&path, &wanted);
            assert_eq!(found.is_ok(), allowed, "{mode:o}");
        }
    }
}
