//! The one error type of the core.
//!
//! It lives apart from the modules that raise it so that none of them knows Python and each
//! message is worded in one place. The binding layer maps every variant to one exception class.

use std::fmt;

/// Longest piece of foreign text that is quoted in a message: enough to recognise a proxy's error
/// page or a header, too little to flood a log with a payload.
const QUOTE_CHARS: usize = 80;

/// What went wrong, in the terms of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The body is not a `GetRecords` response.
    Page {
        /// What the decoder expected or found.
        detail: String,
    },
    /// The body is a `GetRecords` response, but one of its records cannot be used.
    Record {
        /// Place of the record in the response, from 0.
        index: usize,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A header that the envelope could not give back unchanged.
    Header {
        /// The header's name, as far as it is text.
        name: String,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// The envelope as a whole cannot be written.
    Envelope {
        /// What is wrong with it.
        detail: &'static str,
    },
    /// The body is not the answer to a put.
    Answer {
        /// What the decoder expected or found.
        detail: String,
    },
    /// The bytes are not an HTTP response, or leave a doubt about where it ends.
    Http {
        /// What is wrong with it.
        detail: &'static str,
    },
    /// A record index, or a run of them, outside the page.
    Index {
        /// Number of records of the page.
        len: usize,
    },
    /// An argument outside its range.
    Argument {
        /// The rule that it breaks.
        detail: &'static str,
    },
}

impl Error {
    /// A page error; the detail may come from a library and quote the body, so it is shortened.
    pub fn page(detail: impl fmt::Display) -> Self {
        Self::Page {
            detail: quote(&detail.to_string(), 3 * QUOTE_CHARS),
        }
    }

    /// An error for the answer to a put; as in [`Error::page`], the detail is shortened.
    pub fn answer(detail: impl fmt::Display) -> Self {
        Self::Answer {
            detail: quote(&detail.to_string(), 3 * QUOTE_CHARS),
        }
    }

    /// A page error for a body that does not even start like one: quoting its first bytes tells a
    /// proxy's page from a broken response.
    #[must_use]
    pub fn not_an_object(body: &[u8]) -> Self {
        // Four bytes is the longest UTF-8 character.
        let head = &body[..body.len().min(4 * QUOTE_CHARS)];
        let head = quote(&String::from_utf8_lossy(head), QUOTE_CHARS);
        Self::Page {
            detail: format!("the body is not a JSON object, it starts with {head:?}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page { detail } => write!(f, "not a GetRecords response: {detail}"),
            Self::Answer { detail } => write!(f, "not an answer of PutRecords: {detail}"),
            Self::Record { index, detail } => {
                write!(f, "not a GetRecords response: record {index} {detail}")
            }
            Self::Header { name, detail } => {
                write!(f, "header {:?}: {detail}", quote(name, QUOTE_CHARS))
            }
            Self::Envelope { detail } | Self::Argument { detail } => f.write_str(detail),
            Self::Http { detail } => write!(f, "not an answer over HTTP: {detail}"),
            Self::Index { len } => write!(f, "record index out of range: the page holds {len}"),
        }
    }
}

impl std::error::Error for Error {}

/// `Result` with the core's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The first `limit` characters of `text`, marked where something was left out.
fn quote(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_is_quoted_in_part_only() {
        let text = Error::not_an_object("é".repeat(10_000).as_bytes()).to_string();
        assert!(text.chars().count() < 200, "{text}");
        assert!(text.ends_with("…\""), "{text}");
    }

    #[test]
    fn a_character_cut_in_the_middle_does_not_matter() {
        let mut body = vec![b'<'; 4 * QUOTE_CHARS - 1];
        body.extend_from_slice("日".as_bytes());
        assert!(Error::not_an_object(&body).to_string().contains("<<<"));
    }
}
