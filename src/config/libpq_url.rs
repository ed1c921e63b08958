//! `postgres://user:password@host1:port1,host2/dbname?name=value` as libpq reads it: several
//! hosts, each part percent-encoded, any of them absent (PostgreSQL manual, 34.1.1.2).
//!
//! Not RFC 3986, hence not the `url` crate.

use percent_encoding::percent_decode_str;

use super::libpq::Parameters;

/// The text after `postgres://` or `postgresql://`.
pub(super) fn after_scheme(text: &str) -> Option<&str> {
    text.strip_prefix("postgresql://")
        .or_else(|| text.strip_prefix("postgres://"))
}

/// Reads what follows the scheme.
pub(super) fn parse(rest: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    // As in libpq, an @ before the first / ends the login, whatever stands in it.
    let rest = match rest.find(['@', '/']) {
        Some(at) if rest[at..].starts_with('@') => {
            set_login(&mut parameters, &rest[..at])?;
            &rest[at + 1..]
        }
        Some(_) | None => rest,
    };
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    if address.contains('@') {
        return Err(
            "an @ stands in the password or the database name: percent-encode what is special \
             in them (@ is %40, / is %2F, : is %3A, ? is %3F, % is %25)"
                .to_owned(),
        );
    }
    let (hosts, dbname) = address.split_once('/').unwrap_or((address, ""));
    set_hosts(&mut parameters, hosts)?;
    if !dbname.is_empty() {
        parameters.set("dbname", decoded("dbname", dbname)?)?;
    }
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        set_pair(&mut parameters, pair)?;
    }
    Ok(parameters)
}

fn set_login(parameters: &mut Parameters, login: &str) -> Result<(), String> {
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    if !user.is_empty() {
        parameters.set("user", decoded("user", user)?)?;
    }
    if let Some(password) = password.filter(|password| !password.is_empty()) {
        parameters.set("password", decoded("password", password)?)?;
    }
    Ok(())
}

fn set_hosts(parameters: &mut Parameters, hosts: &str) -> Result<(), String> {
    if hosts.is_empty() {
        return Ok(());
    }
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = split_port(host)?;
        names.push(decoded("host", name)?);
        ports.push(decoded("port", port)?);
    }
    parameters.set("host", names.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        parameters.set("port", ports.join(","))?;
    }
    Ok(())
}

fn split_port(host: &str) -> Result<(&str, &str), String> {
    if let Some(bracketed) = host.strip_prefix('[') {
        let (address, after) = bracketed
            .split_once(']')
            .ok_or("an IPv6 address lacks its closing ]")?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((address, port)),
            None if after.is_empty() => Ok((address, "")),
            None => Err("only a port may follow the ] of an IPv6 address".to_owned()),
        };
    }
    Ok(host.split_once(':').unwrap_or((host, "")))
}

fn set_pair(parameters: &mut Parameters, pair: &str) -> Result<(), String> {
    if pair.is_empty() {
        return Ok(());
    }
    let (name, value) = pair
        .split_once('=')
        .ok_or("a parameter after the ? lacks its =")?;
    let name = decoded("a parameter's name", name)?;
    let value = decoded("a parameter's value", value)?;
    // libpq accepts JDBC's ssl=true for sslmode=require.
    match (name.as_str(), value.as_str()) {
        ("ssl", "true") => parameters.set("sslmode", "require".to_owned()),
        _ => parameters.set(&name, value),
    }
}

fn decoded(what: &str, text: &str) -> Result<String, String> {
    let bad = || format!("{what}: a % must be followed by two hexadecimal digits; % is %25");
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).ok_or_else(bad)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(bad());
        }
        if digits == b"00" {
            return Err(format!("{what}: %00 is not allowed"));
        }
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(format!("{what}: not UTF-8 after percent-decoding")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        Parameters::parse(text).unwrap().shown()
    }

    fn problem(text: &str) -> String {
        Parameters::parse(text).err().unwrap()
    }

    #[test]
    fn the_manuals_examples_mean_what_the_manual_says() {
        for (url, parameters) in [
            ("postgresql://", ""),
            ("postgresql://localhost", "host=localhost"),
            ("postgresql://localhost:5433", "host=localhost port=5433"),
            ("postgresql://localhost/mydb", "dbname=mydb host=localhost"),
            ("postgresql://user@localhost", "host=localhost user=user"),
            (
                "postgresql://user:secret@localhost",
                "host=localhost password=*** user=user",
            ),
            (
                "postgresql://other@localhost/otherdb?connect_timeout=10&application_name=myapp",
                "application_name=myapp connect_timeout=10 dbname=otherdb host=localhost \
                 user=other",
            ),
            (
                "postgresql://host1:123,host2:456/somedb?target_session_attrs=any",
                "dbname=somedb host=host1,host2 port=123,456 target_session_attrs=any",
            ),
            (
                "postgresql:///mydb?host=localhost&port=5433",
                "dbname=mydb host=localhost port=5433",
            ),
            (
                "postgresql://[2001:db8::1234]/database",
                "dbname=database host=2001:db8::1234",
            ),
            (
                "postgresql:///dbname?host=/var/lib/postgresql",
                "dbname=dbname host=/var/lib/postgresql",
            ),
            (
                "postgresql://%2Fvar%2Flib%2Fpostgresql/dbname",
                "dbname=dbname host=/var/lib/postgresql",
            ),
            (
                "postgresql://user@localhost:5433/mydb?options=-c%20synchronous_commit%3Doff",
                "dbname=mydb host=localhost options=-c synchronous_commit=off port=5433 user=user",
            ),
        ] {
            assert_eq!(shown(url), parameters, "{url}");
        }
    }

    #[test]
    fn a_later_parameter_wins_over_the_address() {
        assert_eq!(shown("postgres://a/b?host=c&dbname=d"), "dbname=d host=c");
        assert_eq!(shown("postgres://h?ssl=true"), "host=h sslmode=require");
    }

    #[test]
    fn passwords_are_decoded_and_kept_to_the_letter() {
        let parameters = Parameters::parse("postgres://u:%30123%40%2F%3A%25@h").unwrap();
        assert_eq!(parameters.get("password"), Some("0123@/:%"));
        let parameters = Parameters::parse("postgres://u:a:b+c?d@h").unwrap();
        assert_eq!(parameters.get("password"), Some("a:b+c?d"));
    }

    const MISTAKES: [(&str, &str); 13] = [
        (
            "postgres://u:canary@x@h/db",
            "an @ stands in the password or the database name: percent-encode what is \
                 special in them (@ is %40, / is %2F, : is %3A, ? is %3F, % is %25)",
        ),
        (
            "postgres://u:can/ary@h/db",
            "an @ stands in the password or the database name: percent-encode what is \
                 special in them (@ is %40, / is %2F, : is %3A, ? is %3F, % is %25)",
        ),
        (
            "postgres://u:can%ary@h/db",
            "password: a % must be followed by two hexadecimal digits; % is %25",
        ),
        (
            "postgres://u:canary%@h/db",
            "password: a % must be followed by two hexadecimal digits; % is %25",
        ),
        ("postgres://h/db%00", "dbname: %00 is not allowed"),
        (
            "postgres://h/%ff",
            "dbname: not UTF-8 after percent-decoding",
        ),
        ("postgres://[::1/db", "an IPv6 address lacks its closing ]"),
        (
            "postgres://[::1]5432/db",
            "only a port may follow the ] of an IPv6 address",
        ),
        (
            "postgres://h/db?sslmode",
            "a parameter after the ? lacks its =",
        ),
        (
            "postgres://h/db?ssl_mode=require",
            "unknown parameter; did you mean sslmode?",
        ),
        (
            "postgres://h/db?service=x",
            "parameter service is not supported: write host, port and dbname here",
        ),
        (
            "mysql://u:canary@h/db",
            "must begin with postgres:// or postgresql://",
        ),
        (
            "amqp://u:canary@h",
            "is a broker's URL; it belongs into broker.url",
        ),
    ];

    #[test]
    fn a_mistake_is_explained_without_the_secret() {
        for (url, text) in MISTAKES {
            assert_eq!(problem(url), text, "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(postgres://)?[a-z0-9:/@?&=%,\\[\\] '\\\\é]*") {
            let _ = Parameters::parse(&text);
        }
    }
}
