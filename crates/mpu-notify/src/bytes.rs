//! Native-endian numbers in parameters of the driver. A read beyond the end returns 0.

/// The u32 at an offset.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// The u64 at an offset.
pub(crate) fn wide(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Writes a u32 at an offset, where there is room.
pub(crate) fn put(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Writes a u64 at an offset, where there is room.
pub(crate) fn put_wide(bytes: &mut [u8], at: usize, wide: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&wide.to_ne_bytes());
    }
}
