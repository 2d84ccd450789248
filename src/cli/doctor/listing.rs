//! How an object store is listed: requests, money, and its catalog.

use std::path::Path;

use super::Finding;
use crate::cli::object_facts::ListingFacts;
use crate::cli::terminal::shell_quote;
use crate::text::count;

/// Price of a thousand listings at S3 in 2026, in dollars.
const LISTINGS_PRICE: f64 = 0.005;
/// Number of announcements from which on readers notice them.
const NEWS_MAX: usize = 1_000;
/// Number of requests of a listing up to which a catalog saves too little.
const FEW_REQUESTS: usize = 3;

impl ListingFacts {
    pub(super) fn findings(&self, url: &Path) -> Vec<Finding> {
        let command = format!("`swarmletfs catalog {}`", shell_quote(url));
        let (per_minute, dollars) = self.cost();
        let message = format!(
            "a listing takes {}; a mount that is read without a pause sends at most {per_minute:.0} \
             a minute, some ${dollars:.3} an hour at the prices of S3",
            count(self.requests, "request")
        );
        let mut listing = Finding::ok("store", "listing", message);
        let is_large = self.requests > FEW_REQUESTS;
        if self.catalog.is_none() && is_large && self.conditions == Ok(true) {
            listing = listing.with_remedy(format!("{command} makes it short"));
        }
        let catalog = self.catalog.as_ref().map(|catalog| {
            let message = format!(
                "catalog: {} in {}, {} since; all workers were listed at {}",
                count(catalog.workers, "worker"),
                count(catalog.files, "file"),
                count(catalog.news, "announcement"),
                catalog.listed_at
            );
            match catalog.news >= NEWS_MAX {
                true => Finding::note("store", "catalog", message)
                    .with_remedy(format!("{command} brings it up to date")),
                false => Finding::ok("store", "catalog", message),
            }
        });
        let conditions = match &self.conditions {
            Ok(true) => Finding::ok("store", "conditions", "the store honors conditional writes"),
            Ok(false) => Finding::note(
                "store",
                "conditions",
                "the store ignores conditional writes, so it can have no catalog",
            ),
            Err(reason) => {
                let message = format!("whether it can have a catalog is not known: {reason}");
                Finding::ok("store", "conditions", message)
            }
        };
        [Some(listing), catalog, Some(conditions)].into_iter().flatten().collect()
    }

    /// Returns the maximum number of requests a minute, and their price for an hour in dollars.
    fn cost(&self) -> (f64, f64) {
        let seconds = self.interval.as_secs_f64().max(0.001);
        let per_minute = self.requests as f64 * 60.0 / seconds;
        (per_minute, per_minute * 60.0 * LISTINGS_PRICE / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::doctor::Level;
    use crate::cli::object_facts::ShownCatalog;

    fn facts() -> ListingFacts {
        ListingFacts {
            requests: 30,
            interval: Duration::from_secs(15),
            catalog: None,
            conditions: Ok(true),
        }
    }

    #[test]
    fn requests_and_money_are_shown() {
        let findings = facts().findings(Path::new("s3://b/a"));
        let says = findings.iter().map(|finding| finding.message.clone()).collect::<Vec<_>>();
        assert!(says[0].contains("120 a minute, some $0.036 an hour"), "{says:?}");
        assert!(
            findings[0].remedy.as_deref().is_some_and(|text| text.contains("catalog s3://b/a"))
        );
    }

    #[test]
    fn a_store_without_conditional_writes_is_noted() {
        let findings = ListingFacts { conditions: Ok(false), ..facts() };
        let findings = findings.findings(Path::new("s3://b/a"));
        let noted = findings.iter().find(|finding| finding.level == Level::Note).unwrap();
        assert!(noted.message.contains("ignores conditional writes"));
        assert_eq!(findings[0].remedy, None);
    }

    #[test]
    fn a_catalog_that_many_announcements_wait_for_is_noted() {
        for (news, level) in [(3, Level::Ok), (1_000, Level::Note)] {
            let listed_at = "2026-11-30T00:00:00Z".to_owned();
            let catalog = Some(ShownCatalog { workers: 9, files: 1, news, listed_at });
            let findings = ListingFacts { catalog, ..facts() }.findings(Path::new("s3://b/a"));
            assert_eq!(findings[1].level, level);
        }
    }
}
