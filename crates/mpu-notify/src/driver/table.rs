//! A table behind a pointer in a control's parameters.
//!
//! Owns how much of it the driver fills, and how much of that the caller gets. Knows no process's numbers.
//!
//! Outside truth: embedded_param_copy.c of 580.95.05 (the driver copies as many entries out as the caller asked for, used or not); 535.261.03
//! copies none where there is no session.

use crate::bytes::{put_wide, wide, word};
use crate::sys::{FENCED, Fenced};
use mpu_abi::ioctl::gpumon;
use mpu_abi::{Inner, Layout, Row};

/// What stands in memory for rows that the driver has not written to. One that ends so is a row even so: rows are whole.
const UNWRITTEN: u8 = 0xa5;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// Byte offset of the pointer.
    pub(crate) pointer: usize,
    /// Where it points in the caller; 0 for a table that is ours alone.
    pub(crate) theirs: u64,
    inner: Inner,
    /// Entries that the driver is asked for, where the request has a count; of samples, how many bytes the caller has room for.
    asked: u32,
}

impl Table {
    /// The table that a row has and a caller wants.
    pub(crate) fn of(row: &Row, params: &[u8]) -> Option<Table> {
        Table::anyhow(row, params).filter(|table| table.theirs != 0)
    }

    /// The table that a row has, whether or not the caller wants it.
    pub(crate) fn anyhow(row: &Row, params: &[u8]) -> Option<Table> {
        let Layout::Embedded { pointer, inner } = row.layout else { return None };
        let pointer = usize::from(pointer);
        let asked = match &inner {
            Inner::Rows(rows) => word(params, rows.count.into()),
            Inner::Samples(_) => word(params, gpumon::ROOM),
        };
        Some(Table { pointer, theirs: wide(params, pointer), inner, asked })
    }

    /// Has the parameters point to memory of ours. For more than that holds the driver is not asked: it refuses so much.
    pub(crate) fn point_to(&self, ours: &Fenced, params: &mut [u8]) {
        put_wide(params, self.pointer, ours.address());
    }

    /// Bytes that the driver can write: all that it is asked for.
    pub(crate) fn most(&self) -> usize {
        let asked = self.asked as usize;
        match &self.inner {
            Inner::Rows(rows) => asked.saturating_mul(rows.stride.into()),
            Inner::Samples(_) => asked,
        }
        .min(FENCED)
    }

    /// Makes memory ready for the driver to write to.
    pub(crate) fn blank(&self, ours: &mut [u8]) {
        ours.fill(if matches!(self.inner, Inner::Rows(_)) { UNWRITTEN } else { 0 });
    }

    /// Puts back what the caller wrote of the table: `theirs` is where it points in the caller.
    pub(crate) fn put_back(&self, params: &mut [u8], theirs: u64) {
        put_wide(params, self.pointer, theirs);
    }

    /// How many bytes the driver's answer has; never more than the caller has room for.
    pub(crate) fn written(&self, params: &[u8], bytes: &[u8]) -> usize {
        match &self.inner {
            Inner::Rows(rows) => {
                let stride = usize::from(rows.stride.max(1));
                let room = (self.asked as usize).saturating_mul(stride).min(bytes.len());
                let last = bytes[..room].iter().rposition(|byte| *byte != UNWRITTEN).map_or(0, |at| at + 1);
                last.next_multiple_of(stride).min(room)
            }
            Inner::Samples(samples) => {
                let last = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                let stride = usize::from(samples.stride.max(1));
                let counted = usize::from(samples.capacity) * stride;
                let room = word(params, gpumon::ROOM) as usize;
                counted.max(last.next_multiple_of(stride)).min(room).min(bytes.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put;
    use mpu_abi::Control;

    fn row(control: Control) -> &'static Row {
        mpu_abi::ROWS.iter().find(|row| row.control == control).expect("a row")
    }

    fn params(row: &Row, count: u32, pointer: u64) -> Vec<u8> {
        let Layout::Embedded { pointer: at, .. } = row.layout else { panic!("no pointer") };
        let mut params = vec![0; row.params_size as usize];
        put(&mut params, 0, count);
        put_wide(&mut params, at.into(), pointer);
        params
    }

    #[test]
    fn table_is_as_long_as_it_was_asked_for() {
        let row = row(Control::NvencSessions);
        let bytes = vec![0; FENCED];
        let written = |count| Table::of(row, &params(row, count, 1)).expect("a pointer").written(&[], &bytes);
        assert_eq!([written(0), written(3), written(512), written(u32::MAX)], [0, 96, 512 * 32, FENCED]);
        let three = Table::of(row, &params(row, 3, 1)).expect("a pointer");
        let mut bytes = vec![0; FENCED];
        three.blank(&mut bytes);
        assert_eq!(three.written(&[], &bytes), 0, "the driver wrote nothing");
        bytes[32] = 0;
        assert_eq!(three.written(&[], &bytes), 64, "a row is whole");
        assert!(Table::of(row, &params(row, 512, 0)).is_none(), "the number only");
        assert_eq!(Table::anyhow(row, &params(row, 512, 0)).expect("a row with one").theirs, 0);
    }

    #[test]
    fn table_request_keeps_callers_count() {
        let row = row(Control::NvencSessions);
        let ours = Fenced::new().expect("memory");
        for count in [0, 512, 32768, 32769, u32::MAX] {
            let mut params = params(row, count, 1);
            let table = Table::of(row, &params).expect("a pointer");
            table.point_to(&ours, &mut params);
            assert_eq!((wide(&params, 8), word(&params, 0)), (ours.address(), count));
            assert_eq!(table.most(), (count as usize * 32).min(FENCED));
        }
    }

    #[test]
    fn samples_are_as_long_as_caller_has_room_for() {
        let row = row(Control::PerfGpumonUtil);
        for room in [0, 1000] {
            let mut params = params(row, 2, 0);
            put_wide(&mut params, 16, 1);
            put(&mut params, gpumon::ROOM, room);
            assert_eq!(Table::of(row, &params).expect("a pointer").written(&params, &vec![1; FENCED]), room as usize);
        }
    }

    #[test]
    fn every_row_fits_in_fenced_memory() {
        for row in mpu_abi::ROWS {
            assert!(row.params_size as usize <= FENCED, "{row:?}");
            let inner = match row.layout {
                Layout::Embedded { inner: Inner::Rows(rows), .. } => {
                    usize::from(rows.stride) * usize::from(rows.capacity)
                }
                Layout::Embedded { inner: Inner::Samples(samples), .. } => {
                    usize::from(samples.stride) * usize::from(samples.capacity)
                }
                _ => 0,
            };
            assert!(inner <= FENCED, "{row:?}");
        }
    }
}
