//! Allocates a budget by weight; bytes that one demand does not need go to the others.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that satisfy the demand.
    pub need: usize,
    /// Relative weight; 0 counts as 1.
    pub weight: usize,
}

/// Allocates `total` bytes to `demands`.
///
/// No share exceeds its need, and the sum is at most `total`. Unsatisfied demands receive shares in
/// proportion to their weights.
pub fn allocate(demands: &[Demand], total: usize) -> Vec<usize> {
    let mut shares = vec![0; demands.len()];
    // By need per weight: each demand takes its need while its part of the remaining bytes covers
    // it.
    let mut order: Vec<(&Demand, &mut usize)> = demands.iter().zip(&mut shares).collect();
    order.sort_by_key(|(demand, _)| {
        (demand.need as u128 * 1_000_000) / demand.weight.max(1) as u128
    });
    let mut left = total;
    let mut weights: usize = demands.iter().map(|demand| demand.weight.max(1)).sum();
    for (demand, share) in order {
        let weight = demand.weight.max(1);
        let part = (left as u128 * weight as u128 / weights.max(1) as u128) as usize;
        *share = demand.need.min(part);
        left -= *share;
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(need: usize, weight: usize) -> Demand {
        Demand { need, weight }
    }

    #[test]
    fn a_large_demand_does_not_starve_small_ones() {
        assert_eq!(
            allocate(&[demand(1_000_000, 1), demand(10, 1), demand(20, 1)], 100),
            [70, 10, 20]
        );
        assert_eq!(allocate(&[demand(1_000, 3), demand(1_000, 1)], 400), [300, 100]);
        assert_eq!(allocate(&[], 100), Vec::<usize>::new());
    }

    proptest! {
        #![proptest_config(crate::scale::cases(256))]

        #[test]
        fn shares_are_bounded_and_nothing_is_left_that_somebody_needs(
            demands in proptest::collection::vec((0_usize..5_000, 1_usize..9), 0..30), total in 0_usize..20_000,
        ) {
            let demands: Vec<Demand> = demands.into_iter().map(|(need, weight)| demand(need, weight)).collect();
            let shares = allocate(&demands, total);
            let dealt: usize = shares.iter().sum();
            prop_assert!(dealt <= total);
            prop_assert!(shares.iter().zip(&demands).all(|(share, demand)| *share <= demand.need));
            let unmet = shares.iter().zip(&demands).any(|(share, demand)| *share < demand.need);
            prop_assert!(!unmet || total - dealt < demands.len(), "{} left", total - dealt);
        }
    }
}
