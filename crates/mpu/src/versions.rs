//! Compares versions.

/// Whether version `a` comes after `b`, number by number.
pub fn is_newer(a: &str, b: &str) -> bool {
    let numbers = |v: &str| v.split(['.', '-', '+', '~']).map(|n| n.parse().unwrap_or(0)).collect::<Vec<u64>>();
    numbers(a) > numbers(b)
}
