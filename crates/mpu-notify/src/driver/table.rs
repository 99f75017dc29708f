//! A table behind a pointer in a control's parameters: its size for the driver, and the size of its answer.
//!
//! Source: embedded_param_copy.c of 580.95.05 (the driver copies out as many entries as the caller requested, used or not);
//! 535.261.03 copies none if there is no session.

use crate::bytes::{read_u32, read_u64, write_u64};
use crate::sys::{BUFFER_SIZE, GuardedBuffer};
use mpu_abi::ioctl::gpumon;
use mpu_abi::{Inner, Layout, Row};

/// Fills rows that the driver has not written. Sizes are rounded up to whole rows, so a row may end with these bytes.
const UNWRITTEN: u8 = 0xa5;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// Byte offset of the pointer.
    pub(crate) pointer: usize,
    /// The caller's address of the table; 0 if the caller did not request it.
    pub(crate) caller_address: u64,
    inner: Inner,
    /// Number of entries in the request; for samples, the size of the caller's buffer.
    requested: u32,
}

impl Table {
    /// The table of a row, if the caller requests it.
    pub(crate) fn of(row: &Row, params: &[u8]) -> Option<Table> {
        Table::of_row(row, params).filter(|table| table.caller_address != 0)
    }

    /// The table of a row, whether or not the caller requests it.
    pub(crate) fn of_row(row: &Row, params: &[u8]) -> Option<Table> {
        let Layout::Embedded { pointer, inner } = row.layout else { return None };
        let pointer = usize::from(pointer);
        let requested = match &inner {
            Inner::Rows(rows) => read_u32(params, rows.count.into()),
            Inner::Samples(_) => read_u32(params, gpumon::ROOM),
        };
        Some(Table { pointer, caller_address: read_u64(params, pointer), inner, requested })
    }

    /// Points the parameters to our buffer. The driver refuses a larger table than the buffer holds.
    pub(crate) fn point_at(&self, buffer: &GuardedBuffer, params: &mut [u8]) {
        write_u64(params, self.pointer, buffer.address());
    }

    /// Bytes that the driver may write.
    pub(crate) fn size_requested(&self) -> usize {
        let requested = self.requested as usize;
        match &self.inner {
            Inner::Rows(rows) => requested.saturating_mul(rows.stride.into()),
            Inner::Samples(_) => requested,
        }
        .min(BUFFER_SIZE)
    }

    /// Fills the buffer so that unwritten rows can be recognized.
    pub(crate) fn prepare(&self, buffer: &mut [u8]) {
        buffer.fill(if matches!(self.inner, Inner::Rows(_)) { UNWRITTEN } else { 0 });
    }

    /// Restores the caller's address of the table.
    pub(crate) fn restore_address(&self, params: &mut [u8], caller_address: u64) {
        write_u64(params, self.pointer, caller_address);
    }

    /// Size of the driver's answer in bytes, at most the size of the caller's buffer.
    pub(crate) fn answer_size(&self, params: &[u8], bytes: &[u8]) -> usize {
        match &self.inner {
            Inner::Rows(rows) => {
                let stride = usize::from(rows.stride.max(1));
                let room = (self.requested as usize).saturating_mul(stride).min(bytes.len());
                let last = bytes[..room].iter().rposition(|byte| *byte != UNWRITTEN).map_or(0, |at| at + 1);
                last.next_multiple_of(stride).min(room)
            }
            Inner::Samples(samples) => {
                let last = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                let stride = usize::from(samples.stride.max(1));
                let counted = usize::from(samples.capacity) * stride;
                let room = read_u32(params, gpumon::ROOM) as usize;
                counted.max(last.next_multiple_of(stride)).min(room).min(bytes.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::write_u32;
    use mpu_abi::Control;

    fn row(control: Control) -> &'static Row {
        mpu_abi::ROWS.iter().find(|row| row.control == control).expect("a row")
    }

    fn params(row: &Row, count: u32, pointer: u64) -> Vec<u8> {
        let Layout::Embedded { pointer: at, .. } = row.layout else { panic!("no pointer") };
        let mut params = vec![0; row.params_size as usize];
        write_u32(&mut params, 0, count);
        write_u64(&mut params, at.into(), pointer);
        params
    }

    #[test]
    fn table_size_follows_requested_count() {
        let row = row(Control::NvencSessions);
        let bytes = vec![0; BUFFER_SIZE];
        let answer_size = |count| Table::of(row, &params(row, count, 1)).expect("a pointer").answer_size(&[], &bytes);
        assert_eq!(
            [answer_size(0), answer_size(3), answer_size(512), answer_size(u32::MAX)],
            [0, 96, 512 * 32, BUFFER_SIZE]
        );
        let three = Table::of(row, &params(row, 3, 1)).expect("a pointer");
        let mut bytes = vec![0; BUFFER_SIZE];
        three.prepare(&mut bytes);
        assert_eq!(three.answer_size(&[], &bytes), 0, "the driver wrote nothing");
        bytes[32] = 0;
        assert_eq!(three.answer_size(&[], &bytes), 64, "a row is whole");
        assert!(Table::of(row, &params(row, 512, 0)).is_none(), "the number only");
        assert_eq!(Table::of_row(row, &params(row, 512, 0)).expect("a row with one").caller_address, 0);
    }

    #[test]
    fn table_request_keeps_callers_count() {
        let row = row(Control::NvencSessions);
        let buffer = GuardedBuffer::new().expect("memory");
        for count in [0, 512, 32768, 32769, u32::MAX] {
            let mut params = params(row, count, 1);
            let table = Table::of(row, &params).expect("a pointer");
            table.point_at(&buffer, &mut params);
            assert_eq!((read_u64(&params, 8), read_u32(&params, 0)), (buffer.address(), count));
            assert_eq!(table.size_requested(), (count as usize * 32).min(BUFFER_SIZE));
        }
    }

    #[test]
    fn samples_fit_callers_buffer() {
        let row = row(Control::PerfGpumonUtil);
        for room in [0, 1000] {
            let mut params = params(row, 2, 0);
            write_u64(&mut params, 16, 1);
            write_u32(&mut params, gpumon::ROOM, room);
            assert_eq!(
                Table::of(row, &params).expect("a pointer").answer_size(&params, &vec![1; BUFFER_SIZE]),
                room as usize
            );
        }
    }

    #[test]
    fn every_row_fits_in_fenced_memory() {
        for row in mpu_abi::ROWS {
            assert!(row.params_size as usize <= BUFFER_SIZE, "{row:?}");
            let inner = match row.layout {
                Layout::Embedded { inner: Inner::Rows(rows), .. } => {
                    usize::from(rows.stride) * usize::from(rows.capacity)
                }
                Layout::Embedded { inner: Inner::Samples(samples), .. } => {
                    usize::from(samples.stride) * usize::from(samples.capacity)
                }
                _ => 0,
            };
            assert!(inner <= BUFFER_SIZE, "{row:?}");
        }
    }
}
