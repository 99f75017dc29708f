//! An independent Protobuf encoder and decoder, so that tests find wrong field numbers in the plugin.
//!
//! Source: protobuf.dev, "Encoding". The field numbers in the tests are those of `pkg/api/api.proto` of containerd/nri
//! 0.12.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    /// A text, bytes or a message.
    Bytes(Vec<u8>),
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field that holds a number; nothing for 0, which is the default.
pub fn number(field: u64, number: u64) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        _ => [varint(field << 3), varint(number)].concat(),
    }
}

/// A field that holds a text or a message.
pub fn bytes(field: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A message of these fields.
pub fn message(fields: &[Vec<u8>]) -> Vec<u8> {
    fields.concat()
}

/// What is in a message.
pub struct Fields(Vec<(u64, Value)>);

impl Fields {
    pub fn of(mut bytes: &[u8]) -> Fields {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut number = 0;
            for shift in (0..64).step_by(7) {
                let (byte, rest) = bytes.split_first().expect("a byte");
                *bytes = rest;
                number |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            number
        }
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Value::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, value));
        }
        Fields(fields)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every value of a field.
    pub fn all(&self, field: u64) -> Vec<Vec<u8>> {
        let of_it = self.0.iter().filter(|(number, _)| *number == field);
        of_it
            .map(|(_, value)| if let Value::Bytes(bytes) = value { bytes.clone() } else { panic!("a number") })
            .collect()
    }

    /// A message in a field, or an empty one.
    pub fn inner(&self, field: u64) -> Fields {
        Fields::of(&self.all(field).pop().unwrap_or_default())
    }

    /// A text in a field, or an empty one.
    pub fn text(&self, field: u64) -> String {
        String::from_utf8(self.all(field).pop().unwrap_or_default()).expect("UTF-8")
    }

    /// The texts in a field.
    pub fn texts(&self, field: u64) -> Vec<String> {
        self.all(field).into_iter().map(|bytes| String::from_utf8(bytes).expect("UTF-8")).collect()
    }

    /// A number in a field, or 0.
    pub fn number(&self, field: u64) -> u64 {
        let found = self.0.iter().find(|(number, _)| *number == field);
        found.map_or(0, |(_, value)| if let Value::Number(number) = value { *number } else { panic!("bytes") })
    }
}
