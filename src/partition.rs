//! Which worker partition a record belongs to.
//!
//! Its own module because it is a promise of its own: one key goes to one worker, today, tomorrow
//! and in every process, so the hash is written down here instead of being taken from a library
//! that may change it.

/// Most worker partitions that one call splits a run into: far beyond any service, low enough
/// that a mistaken number cannot exhaust the memory.
pub const MAX_PARTITIONS: usize = 65_536;

/// Offset basis and prime of 64-bit FNV-1a: short, public, and good on short keys.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The partition of a key among `n`: a pure function of the two.
#[must_use]
pub fn of_key(key: &str, n: usize) -> usize {
    let hash = key.bytes().fold(FNV_BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    });
    // FNV spreads the last bytes of a key over the low bits only weakly; one round of mixing
    // lets keys that differ in their last digit part company for every n.
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The high half scaled down to n: even for every n, and without a division.
    let scaled = (u128::from(hash) * n as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_same_in_every_release() {
        let seen: Vec<_> = ["", "a", "customer-7", "日本"]
            .map(|key| of_key(key, 1_000))
            .into();
        assert_eq!(seen, [521, 510, 494, 421]);
    }

    #[test]
    fn keys_spread_over_every_number_of_partitions() {
        for n in 1..=32 {
            let mut counts = vec![0_usize; n];
            for customer in 0..10_000 {
                counts[of_key(&format!("customer-{customer}"), n)] += 1;
            }
            let fair = 10_000 / n;
            for count in counts {
                assert!(
                    count > fair / 2 && count < fair * 2,
                    "{n}: {count} of {fair}"
                );
            }
        }
    }
}
