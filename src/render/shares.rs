//! How a budget is dealt: by weight, never more than needed, and what one does not need goes to the others.

/// What one wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// Bytes that would satisfy it.
    pub(super) need: usize,
    /// Its weight against the others; at least 1.
    pub(super) weight: usize,
}

/// Deals `total` bytes over `claims`: nobody gets more than its need, the sum is at most `total`, and of two claims
/// that are not satisfied each has in proportion to its weight.
pub(super) fn deal(claims: &[Claim], total: usize) -> Vec<usize> {
    let mut shares = vec![0; claims.len()];
    // In the order of need per weight: each takes its need while its part of what is left covers it.
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let key = |at: &usize| claims.get(*at).map(|claim| (claim.need as u128 * 1_000_000) / claim.weight.max(1) as u128);
    order.sort_by_key(|at| (key(at), *at));
    let mut left = total;
    let mut weights: usize = claims.iter().map(|claim| claim.weight.max(1)).sum();
    for at in order {
        let (Some(claim), Some(share)) = (claims.get(at), shares.get_mut(at)) else { continue };
        let weight = claim.weight.max(1);
        let part = (left as u128 * weight as u128 / weights.max(1) as u128) as usize;
        *share = claim.need.min(part);
        left -= *share;
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(need: usize, weight: usize) -> Claim {
        Claim { need, weight }
    }

    #[test]
    fn a_large_claim_does_not_starve_small_ones() {
        assert_eq!(deal(&[claim(1_000_000, 1), claim(10, 1), claim(20, 1)], 100), [70, 10, 20]);
        assert_eq!(deal(&[claim(1_000, 3), claim(1_000, 1)], 400), [300, 100]);
        assert_eq!(deal(&[], 100), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn shares_are_bounded_and_nothing_is_left_that_somebody_needs(
            claims in proptest::collection::vec((0_usize..5_000, 1_usize..9), 0..30), total in 0_usize..20_000,
        ) {
            let claims: Vec<Claim> = claims.into_iter().map(|(need, weight)| claim(need, weight)).collect();
            let shares = deal(&claims, total);
            let dealt: usize = shares.iter().sum();
            prop_assert!(dealt <= total);
            prop_assert!(shares.iter().zip(&claims).all(|(share, claim)| *share <= claim.need));
            let unmet = shares.iter().zip(&claims).any(|(share, claim)| *share < claim.need);
            prop_assert!(!unmet || total - dealt < claims.len(), "{} left", total - dealt);
        }
    }
}
