//! How findings are told: lines for people, an object for scripts.

use serde_json::json;

use super::super::plain::plain;
use super::finding::{Finding, State};

/// Of the `--json` output; raised when a field changes its meaning or goes.
const JSON_VERSION: u32 = 1;

/// One line for each finding, the remedy under it, and a sum.
pub(super) fn text(findings: &[Finding]) -> String {
    let width = |texts: &mut dyn Iterator<Item = &'static str>| {
        texts.map(str::len).max().unwrap_or_default()
    };
    let states = width(&mut findings.iter().map(|finding| finding.state.word()));
    let checks = width(&mut findings.iter().map(|finding| finding.check));
    let mut text = String::new();
    for finding in findings {
        let (state, check) = (finding.state.word(), finding.check);
        text.push_str(&format!(
            "{state:states$}  {check:checks$}  {}\n",
            plain(&finding.found)
        ));
        if let Some(remedy) = &finding.remedy {
            text.push_str(&format!(
                "{:states$}  {:checks$}  → {}\n",
                "",
                "",
                plain(remedy)
            ));
        }
    }
    text.push_str(&sum(findings));
    text
}

fn sum(findings: &[Finding]) -> String {
    let count = |state| findings.iter().filter(|f| f.state == state).count();
    let (failed, warnings) = (count(State::Failed), count(State::Warning));
    let unreachable = count(State::Unreachable);
    let mut parts = vec![format!("{} checks", findings.len())];
    for (number, what) in [
        (failed, "failed"),
        (unreachable, "unreachable"),
        (warnings, "with a warning"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    if parts.len() == 1 {
        parts.push("all well".to_owned());
    }
    parts.join(", ")
}

/// `{"version": 1, "ok": …, "checks": [{"check", "state", "found", "remedy"}]}`.
///
/// # Errors
/// Never in fact: all of it can be told in JSON.
pub(super) fn json(findings: &[Finding]) -> serde_json::Result<String> {
    let bad = |finding: &Finding| matches!(finding.state, State::Failed | State::Unreachable);
    serde_json::to_string_pretty(&json!({
        "version": JSON_VERSION,
        "ok": !findings.iter().any(bad),
        "checks": findings,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_stand_under_what_they_are_for() {
        let findings = [
            Finding::ok("database", "connected"),
            Finding::warning("wake", "risky", "migrate --wake none"),
        ];
        assert_eq!(
            text(&findings),
            "ok       database  connected\n\
             warning  wake      risky\n                   → migrate --wake none\n\
             2 checks, 1 with a warning"
        );
        assert!(text(&findings[..1]).ends_with("1 checks, all well"));
    }

    #[test]
    fn json_tells_the_same_with_a_version() {
        let findings = [Finding::failed("schema", "missing", "migrate")];
        let object: serde_json::Value = serde_json::from_str(&json(&findings).unwrap()).unwrap();
        assert_eq!(
            object,
            json!({
                "version": 1,
                "ok": false,
                "checks": [
                    {"check": "schema", "state": "failed", "found": "missing", "remedy": "migrate"}
                ],
            })
        );
    }
}
