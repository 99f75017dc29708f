//! Native-endian numbers in a block of parameters.

pub(super) fn write_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|place| bytes[at + place]))
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|place| bytes[at + place]))
}
