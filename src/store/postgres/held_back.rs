//! What a relay holds back, as its row in `outbox.instance` tells it.

use serde_json::Value;
use tokio_postgres::types::Json;

use crate::relay::rules::HeldBack;

/// Null where there is nothing to tell.
pub(super) fn told(held_back: &[HeldBack]) -> Option<Json<&[HeldBack]>> {
    (!held_back.is_empty()).then_some(Json(held_back))
}

/// As far as this version understands it: another one's relay may tell more.
pub(super) fn understood(told: Option<Value>) -> Vec<HeldBack> {
    let told: Vec<Value> = told
        .and_then(|told| serde_json::from_value(told).ok())
        .unwrap_or_default();
    let understood = told.into_iter().map(serde_json::from_value);
    understood.filter_map(Result::ok).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_another_version_tells_is_passed_over() {
        let told = json!([
            { "moon": "full" },
            { "fate": "sent", "ids": [7], "rows": 1, "for_seconds": 9, "why": "locked", "and": "more" },
        ]);
        let understood = understood(Some(told));
        assert_eq!(understood.len(), 1);
        assert!(understood[0].concerns(7, ("", "")));
        assert_eq!(super::understood(Some(json!("nonsense"))), []);
        assert_eq!(super::understood(None), []);
    }
}
