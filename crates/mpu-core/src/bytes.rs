//! Reads and writes little-endian fields at an offset. Out of bounds is `None`, without a panic.

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) -> Option<()> {
    let field: &mut [u8; 4] = bytes.get_mut(at..at.checked_add(4)?)?.try_into().ok()?;
    *field = value.to_le_bytes();
    Some(())
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) -> Option<()> {
    let field: &mut [u8; 8] = bytes.get_mut(at..at.checked_add(8)?)?.try_into().ok()?;
    *field = value.to_le_bytes();
    Some(())
}

pub(crate) fn zero(bytes: &mut [u8], at: usize, len: usize) -> Option<()> {
    bytes.get_mut(at..at.checked_add(len)?)?.fill(0);
    Some(())
}
