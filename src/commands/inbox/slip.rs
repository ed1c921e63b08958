//! A consumer or a class that no entry has is told with those that there are: a slip of the pen
//! must not read as "there is nothing to do". It is no error, because all may have been done.

use std::collections::BTreeSet;

use super::super::plain::plain;
use super::FilterArgs;
use crate::store::postgres::inbox_entries::Total;

/// What to say of a filter that nothing fits; `None` where its words are known.
pub(super) fn slip(filter: &FilterArgs, totals: &[Total]) -> Option<String> {
    let consumers = totals.iter().map(|one| one.consumer.as_str()).collect();
    let classes = totals
        .iter()
        .filter_map(|one| one.class.as_deref())
        .collect();
    let unknown = |what: &str, word: &Option<String>, known: BTreeSet<&str>| {
        let word = word.as_deref().filter(|word| !known.contains(word))?;
        let known: Vec<_> = known.into_iter().map(plain).collect();
        let known = match known.is_empty() {
            true => "none at all".to_owned(),
            false => known.join(", "),
        };
        Some(format!(
            "no entry has the {what} {}; there are: {known}",
            plain(word)
        ))
    };
    unknown("consumer", &filter.consumer, consumers)
        .or_else(|| unknown("class", &filter.class, classes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn total(consumer: &str, class: Option<&str>) -> Total {
        Total {
            consumer: consumer.to_owned(),
            state: "dead".to_owned(),
            class: class.map(str::to_owned),
            entries: 1,
            oldest_age: Duration::ZERO,
        }
    }

    fn filter(consumer: Option<&str>, class: Option<&str>) -> FilterArgs {
        FilterArgs {
            consumer: consumer.map(str::to_owned),
            class: class.map(str::to_owned),
            ..FilterArgs::default()
        }
    }

    #[test]
    fn a_word_that_no_entry_has_is_told_with_those_that_there_are() {
        let totals = [total("pay", Some("permanent")), total("mail", None)];
        for (consumer, class, told) in [
            (Some("pay"), Some("permanent"), None),
            (None, None, None),
            (
                Some("pya"),
                Some("slip"),
                Some("no entry has the consumer pya; there are: mail, pay"),
            ),
            (
                None,
                Some("permanet"),
                Some("no entry has the class permanet; there are: permanent"),
            ),
        ] {
            assert_eq!(slip(&filter(consumer, class), &totals).as_deref(), told);
        }
        let told = slip(&filter(Some("pay"), None), &[]);
        assert_eq!(
            told.as_deref(),
            Some("no entry has the consumer pay; there are: none at all")
        );
    }
}
