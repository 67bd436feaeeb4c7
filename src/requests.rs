//! The JSON of the requests that a service makes for every page and every published record, and of
//! the one answer that has a part for each record.

use base64_simd::STANDARD;

use crate::error::{Error, Result};

/// The body of `GetRecords`.
#[must_use]
pub fn get_records(iterator: &str, limit: u64, arn: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(iterator.len() + arn.map_or(0, str::len) + 64);
    out.extend_from_slice(b"{\"ShardIterator\":");
    push_text(&mut out, iterator);
    out.extend_from_slice(b",\"Limit\":");
    out.extend_from_slice(limit.to_string().as_bytes());
    if let Some(arn) = arn {
        out.extend_from_slice(b",\"StreamARN\":");
        push_text(&mut out, arn);
    }
    out.push(b'}');
    out
}

/// Which stream a put goes to.
#[derive(Clone, Copy)]
pub enum Stream<'a> {
    /// By its name.
    Name(&'a str),
    /// By its ARN.
    Arn(&'a str),
}

/// One record to put.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The blob.
    pub data: &'a [u8],
    /// Its partition key.
    pub partition_key: &'a str,
    /// The hash key that stands in for the partition key's own.
    pub explicit_hash_key: Option<&'a str>,
}

/// The body of `PutRecord`.
#[must_use]
pub fn put_record(stream: Stream<'_>, entry: Entry<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(room(&entry) + 256);
    out.push(b'{');
    push_entry(&mut out, entry);
    push_stream(&mut out, stream);
    out
}

/// The body of `PutRecords`.
#[must_use]
pub fn put_records(stream: Stream<'_>, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    put_records_into(&mut out, stream, entries);
    out
}

/// The same at the end of a buffer that the caller uses again: fresh memory costs as much as
/// writing to it.
pub fn put_records_into(out: &mut Vec<u8>, stream: Stream<'_>, entries: &[Entry<'_>]) {
    out.reserve(entries.iter().map(room).sum::<usize>() + 256);
    out.extend_from_slice(b"{\"Records\":[");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.push(b'{');
        push_entry(out, *entry);
        out.push(b'}');
    }
    out.push(b']');
    push_stream(out, stream);
}

/// Bytes that an entry takes, if its keys hold nothing to escape.
fn room(entry: &Entry<'_>) -> usize {
    STANDARD.encoded_length(entry.data.len())
        + entry.partition_key.len()
        + entry.explicit_hash_key.map_or(0, str::len)
        + 64
}

fn push_entry(out: &mut Vec<u8>, entry: Entry<'_>) {
    out.extend_from_slice(b"\"Data\":\"");
    STANDARD.encode_append(entry.data, out);
    out.extend_from_slice(b"\",\"PartitionKey\":");
    push_text(out, entry.partition_key);
    if let Some(key) = entry.explicit_hash_key {
        out.extend_from_slice(b",\"ExplicitHashKey\":");
        push_text(out, key);
    }
}

fn push_stream(out: &mut Vec<u8>, stream: Stream<'_>) {
    let (name, text) = match stream {
        Stream::Name(text) => ("StreamName", text),
        Stream::Arn(text) => ("StreamARN", text),
    };
    out.extend_from_slice(format!(",\"{name}\":").as_bytes());
    push_text(out, text);
    out.push(b'}');
}

/// A string as JSON.
fn push_text(out: &mut Vec<u8>, text: &str) {
    // A string into a vector cannot fail: neither writing it nor its own form.
    let written = serde_json::to_writer(out, text);
    debug_assert!(written.is_ok());
}

/// What became of one record of a `PutRecords` request.
#[derive(serde::Deserialize)]
pub struct Put {
    /// The shard it stands in.
    #[serde(rename = "ShardId", default)]
    pub shard_id: Option<String>,
    /// Its sequence number there.
    #[serde(rename = "SequenceNumber", default)]
    pub sequence_number: Option<String>,
    /// Why it was refused.
    #[serde(rename = "ErrorCode", default)]
    pub error_code: Option<String>,
    /// The same in words.
    #[serde(rename = "ErrorMessage", default)]
    pub error_message: Option<String>,
}

/// The results in the body of a `PutRecords` answer, in the order of the request.
///
/// # Errors
///
/// [`Error::Answer`] for anything else.
pub fn put_results(body: &[u8]) -> Result<Vec<Put>> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(rename = "Records")]
        records: Vec<Put>,
    }
    serde_json::from_slice::<Answer>(body)
        .map(|answer| answer.records)
        .map_err(Error::answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn read(body: &[u8]) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn results_are_read_and_somebody_elses_body_is_not() {
        let body = br#"{"FailedRecordCount":1,"Records":[
            {"ShardId":"s","SequenceNumber":"1","ErrorCode":null},
            {"ErrorCode":"InternalFailure","ErrorMessage":"oops","Odd":[{}]},{}]}"#;
        let results = put_results(body).unwrap();
        assert_eq!(results.len(), 3);
        assert_eq!(results[0].sequence_number.as_deref(), Some("1"));
        assert_eq!(results[0].error_code, None);
        assert_eq!(results[1].error_code.as_deref(), Some("InternalFailure"));
        assert_eq!(results[2].shard_id, None);
        for foreign in [
            "",
            "<html>",
            "{}",
            "[]",
            r#"{"Records":null}"#,
            r#"{"Records":[7]}"#,
        ] {
            assert!(put_results(foreign.as_bytes()).is_err(), "{foreign}");
        }
    }

    #[test]
    fn bodies_are_the_json_of_their_members() {
        assert_eq!(
            read(&get_records("a\"b\\", 1_000, None)),
            json!({"ShardIterator": "a\"b\\", "Limit": 1000})
        );
        assert_eq!(
            read(&get_records("a", 1, Some("arn:x"))),
            json!({"ShardIterator": "a", "Limit": 1, "StreamARN": "arn:x"})
        );
        let plain = Entry {
            data: b"\xff\xff\xff?",
            partition_key: "日\u{1f600}\n",
            explicit_hash_key: None,
        };
        let hashed = Entry {
            data: b"",
            partition_key: "k",
            explicit_hash_key: Some("12"),
        };
        assert_eq!(
            read(&put_record(Stream::Name("s"), plain)),
            json!({"Data": "////Pw==", "PartitionKey": "日\u{1f600}\n", "StreamName": "s"})
        );
        assert_eq!(
            read(&put_records(Stream::Arn("arn:s"), &[plain, hashed])),
            json!({"Records": [
                {"Data": "////Pw==", "PartitionKey": "日\u{1f600}\n"},
                {"Data": "", "PartitionKey": "k", "ExplicitHashKey": "12"},
            ], "StreamARN": "arn:s"})
        );
    }
}
