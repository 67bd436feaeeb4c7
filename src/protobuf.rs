//! The fields of a Protocol Buffers message, as they lie in its bytes.
//!
//! What an aggregate needs of the format is small: numbers and byte strings, in two flat messages.
//! It is written down here because reading must not cost memory: nothing is copied, and nothing is
//! allocated, whatever the bytes claim. The tests compare it with `prost`, which makes an object of
//! 56 bytes out of every record of two, before anybody can say that it lacks a required field.

use std::ops::Range;

/// Highest field number of the format.
const MAX_FIELD: u64 = (1 << 29) - 1;

/// The bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// What a field holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number of variable length.
    Number(u64),
    /// Bytes, text or a message: where they are.
    Bytes(Range<usize>),
    /// A number of fixed length; no message that we know has one.
    Fixed,
}

/// Reads one message, field by field.
#[derive(Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    /// The message that stands in `span`. Offsets are those of `bytes`, so that a nested message is
    /// read by the span it was found at.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if `bytes` ends before `span` does.
    pub fn new(bytes: &'a [u8], span: Range<usize>) -> Result<Self, Malformed> {
        if span.start > span.end || span.end > bytes.len() {
            return Err(Malformed);
        }
        Ok(Self {
            bytes,
            at: span.start,
            end: span.end,
        })
    }

    /// The next field's number and value; `None` at the end of the message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for a field that reaches beyond the message, and for what is no field at all.
    /// Groups are among that: the format gave them up before there were aggregates.
    pub fn field(&mut self) -> Result<Option<(u64, Value)>, Malformed> {
        if self.at == self.end {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number > MAX_FIELD {
            return Err(Malformed);
        }
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.fixed(8)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.fixed(4)?,
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }

    fn fixed(&mut self, length: usize) -> Result<Value, Malformed> {
        self.take(length).map(|_| Value::Fixed)
    }

    fn take(&mut self, length: usize) -> Result<Range<usize>, Malformed> {
        // Subtracted, not added: a length of 2^64 must not wrap around.
        if length > self.end - self.at {
            return Err(Malformed);
        }
        let start = self.at;
        self.at += length;
        Ok(start..self.at)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            if self.at == self.end {
                return Err(Malformed);
            }
            let byte = self.bytes[self.at];
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

/// Appends a number of variable length: seven bits a byte, the lowest first.
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        // The mark that more follow.
        out.push(low | 0x80);
    }
}

/// Bytes that [`push_varint`] writes.
#[must_use]
pub fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Appends a field that is a number.
pub fn push_number(out: &mut Vec<u8>, field: u64, value: u64) {
    push_varint(out, field << 3);
    push_varint(out, value);
}

/// Bytes that [`push_number`] writes.
#[must_use]
pub fn number_len(field: u64, value: u64) -> usize {
    varint_len(field << 3) + varint_len(value)
}

/// Appends what stands before the `length` bytes of a field.
pub fn push_length(out: &mut Vec<u8>, field: u64, length: usize) {
    push_varint(out, field << 3 | 2);
    push_varint(out, length as u64);
}

/// Bytes of a field of `length` bytes, with what stands before them.
#[must_use]
pub fn bytes_len(field: u64, length: usize) -> usize {
    varint_len(field << 3 | 2) + varint_len(length as u64) + length
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u64, Value)>, Malformed> {
        let mut fields = Fields::new(bytes, 0..bytes.len())?;
        let mut out = Vec::new();
        while let Some(field) = fields.field()? {
            out.push(field);
        }
        Ok(out)
    }

    #[test]
    fn fields_of_every_kind_are_read_or_passed() {
        let bytes = b"\x08\x96\x01\x12\x02hi\x19........\x25....\x12\x00";
        let expected = [
            (1, Value::Number(150)),
            (2, Value::Bytes(5..7)),
            (3, Value::Fixed),
            (4, Value::Fixed),
            (2, Value::Bytes(23..23)),
        ];
        assert_eq!(all(bytes).unwrap(), expected);
        for length in [1, 2, 4, 5, 6, 8, 15, 17, 20, 22] {
            assert_eq!(all(&bytes[..length]), Err(Malformed), "{length}");
        }
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for bytes in [
            &b"\x00\x00"[..],
            b"\x0b\x0c",
            b"\x0e",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
            b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
        ] {
            assert_eq!(all(bytes), Err(Malformed), "{bytes:?}");
        }
        assert!(Fields::new(b"abc", 2..4).is_err());
    }

    #[test]
    fn the_largest_number_is_read() {
        let bytes = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(all(bytes).unwrap(), [(1, Value::Number(u64::MAX))]);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            field in 1..=MAX_FIELD,
            value: u64,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut out = Vec::new();
            push_number(&mut out, field, value);
            prop_assert_eq!(out.len(), number_len(field, value));
            let start = out.len();
            push_length(&mut out, field, bytes.len());
            out.extend_from_slice(&bytes);
            prop_assert_eq!(out.len() - start, bytes_len(field, bytes.len()));
            let span = out.len() - bytes.len()..out.len();
            prop_assert_eq!(&out[span.clone()], &bytes[..]);
            let expected = vec![(field, Value::Number(value)), (field, Value::Bytes(span))];
            prop_assert_eq!(all(&out), Ok(expected));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = all(&bytes);
        }
    }
}
