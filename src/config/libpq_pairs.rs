//! `host=localhost dbname='my db'` as libpq reads it (PostgreSQL manual, 34.1.1.1).

use std::iter::Peekable;
use std::str::Chars;

use super::libpq::Parameters;

/// Reads the pairs.
pub(super) fn parse(text: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::default();
    let mut rest = text.chars().peekable();
    loop {
        skip_blanks(&mut rest);
        if rest.peek().is_none() {
            return Ok(parameters);
        }
        let name = keyword(&mut rest)?;
        skip_blanks(&mut rest);
        let value = match rest.peek() {
            Some('\'') => quoted(&mut rest)?,
            Some(_) | None => unquoted(&mut rest),
        };
        if !value.is_empty() {
            parameters.set(&name, value)?;
        }
    }
}

fn skip_blanks(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|c| c.is_whitespace()).is_some() {}
}

fn keyword(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut name = String::new();
    while let Some(c) = rest.next_if(|c| *c != '=' && !c.is_whitespace()) {
        name.push(c);
    }
    skip_blanks(rest);
    match rest.next() {
        Some('=') if !name.is_empty() => Ok(name),
        // The word may be anything, a password included, so it is not repeated.
        Some(_) | None => Err(
            "is neither a postgres:// URL nor a list of key=value pairs: an = is missing"
                .to_owned(),
        ),
    }
}

fn quoted(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut value = String::new();
    rest.next();
    while let Some(c) = rest.next() {
        match c {
            '\'' => return Ok(value),
            '\\' => value.extend(rest.next()),
            c => value.push(c),
        }
    }
    Err("a quoted value lacks its closing '".to_owned())
}

fn unquoted(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut value = String::new();
    while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
        match c {
            '\\' => value.extend(rest.next()),
            c => value.push(c),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Parameters::parse(text).unwrap().shown()
    }

    #[test]
    fn pairs_are_read_as_libpq_does() {
        for (text, parameters) in [
            (
                "host=localhost port=5432 dbname=mydb connect_timeout=10",
                "connect_timeout=10 dbname=mydb host=localhost port=5432",
            ),
            (
                "dbname = 'my \\'db\\\\' user=a\\ b",
                "dbname=my 'db\\ user=a b",
            ),
            ("host=/run/pg dbname=''", "host=/run/pg"),
            ("options='-c a=b' host=x host=y", "host=y options=-c a=b"),
        ] {
            assert_eq!(shown(text), parameters, "{text}");
        }
    }

    #[test]
    fn a_mistake_is_explained_without_the_secret() {
        let problem = |text| Parameters::parse(text).err().unwrap();
        assert_eq!(
            problem("canary"),
            "is neither a postgres:// URL nor a list of key=value pairs: an = is missing"
        );
        assert_eq!(
            problem("password='canary"),
            "a quoted value lacks its closing '"
        );
        assert_eq!(problem("hostt=x"), "unknown parameter; did you mean host?");
    }
}
