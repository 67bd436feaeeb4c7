//! Where a record goes: the number that the service compares with the ranges of its shards.
//!
//! Apart from `partition`, which spreads records over our own workers by a hash of our own: this one
//! is the service's.

use md5::{Digest, Md5};

/// The service's hash of a partition key: MD5 over its UTF-8, read as an unsigned number with the
/// highest byte first. A record with an explicit hash key goes by that one instead.
#[must_use]
pub fn of_partition_key(key: &str) -> u128 {
    u128::from_be_bytes(Md5::digest(key).into())
}

/// Whether the service takes this as an explicit hash key: a decimal number below 2^128, without a
/// sign or zeros in front.
#[must_use]
pub fn is_explicit(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
        && text.parse::<u128>().is_ok()
}

/// The hash key that a record goes by.
#[must_use]
pub fn of_record(partition_key: &str, explicit: Option<&str>) -> u128 {
    explicit
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| of_partition_key(partition_key))
}

/// The hash keys of some shards, no two of which have one in common.
#[derive(Debug)]
pub struct Ranges {
    /// First and last hash key, and the place in the order in which they were given.
    sorted: Vec<(u128, u128, usize)>,
}

impl Ranges {
    /// Ranges by their first and last hash keys, both of which belong to them.
    #[must_use]
    pub fn new(given: &[(u128, u128)]) -> Self {
        let places = given.iter().enumerate();
        let mut sorted: Vec<_> = places
            .map(|(at, (first, last))| (*first, *last, at))
            .collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// Which of the ranges a hash key is in.
    #[must_use]
    pub fn place(&self, hash_key: u128) -> Option<usize> {
        let after = self.sorted.partition_point(|range| range.0 <= hash_key);
        let (_, last, place) = self.sorted.get(after.checked_sub(1)?)?;
        (hash_key <= *last).then_some(*place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_key_is_in_the_range_that_holds_it_or_in_none() {
        let ranges = Ranges::new(&[(100, u128::MAX), (0, 9), (10, 10)]);
        for (hash_key, place) in [
            (0, Some(1)),
            (9, Some(1)),
            (10, Some(2)),
            (11, None),
            (99, None),
            (100, Some(0)),
            (u128::MAX, Some(0)),
        ] {
            assert_eq!(ranges.place(hash_key), place, "{hash_key}");
        }
        assert_eq!(Ranges::new(&[]).place(0), None);
        assert_eq!(Ranges::new(&[(1, 2)]).place(0), None);
    }

    #[test]
    fn an_explicit_hash_key_stands_in_for_that_of_the_partition_key() {
        assert_eq!(of_record("user-1", Some("17")), 17);
        assert_eq!(of_record("user-1", None), of_partition_key("user-1"));
    }

    #[test]
    fn case_k2_a_hash_key_is_unsigned_and_starts_with_the_highest_byte() {
        assert_eq!(
            of_partition_key("user-1"),
            285_573_413_173_782_752_570_879_317_399_258_818_820
        );
        assert_eq!(
            of_partition_key(""),
            0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e
        );
        // The UTF-8 of it, not UTF-16 or code points.
        assert_eq!(
            of_partition_key("日本").to_be_bytes(),
            *Md5::digest("日本".as_bytes())
        );
    }

    #[test]
    fn explicit_hash_keys_are_numbers_of_128_bits() {
        let largest = u128::MAX.to_string();
        for good in ["0", "7", "10", &largest] {
            assert!(is_explicit(good), "{good}");
        }
        let beyond = "340282366920938463463374607431768211456";
        for bad in [
            "", "00", "01", "-1", "+1", " 1", "1 ", "0x1", "1.0", "٣", beyond,
        ] {
            assert!(!is_explicit(bad), "{bad}");
        }
    }
}
