//! The head of an HTTP/1.1 response: where its body ends, and whether the connection lives on.
//!
//! `httparse` splits the lines; what decides about framing is here, because a wrong answer to
//! "where does this body end" gives one request the answer to another. Every doubt is an error:
//! the caller closes the connection and asks again on a new one.

use crate::error::{Error, Result};

/// The service sends about ten.
const MAX_HEADERS: usize = 100;
const SWITCHING_PROTOCOLS: u16 = 101;
/// From here on a response is the final one.
const FINAL: u16 = 200;
const NO_CONTENT: u16 = 204;
const NOT_MODIFIED: u16 = 304;
/// The last status that there is.
const MAX_STATUS: u16 = 599;

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// As many as its chunks say.
    Chunked,
    /// All that comes until the server closes the connection.
    UntilClose,
}

/// The head of a final response.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes that it took, with those of interim responses before it.
    pub len: usize,
    /// The status code.
    pub status: u16,
    /// How its body ends.
    pub body: Body,
    /// Whether another request may follow on the same connection.
    pub reusable: bool,
    /// Names in lower case; values byte for character.
    pub headers: Vec<(String, String)>,
}

/// Reads the head at the start of `bytes`, passing over interim (1xx) responses.
///
/// `None` where more bytes are needed.
///
/// # Errors
///
/// [`Error::Http`] where the bytes are no head, or leave a doubt about where the body ends.
pub fn parse(bytes: &[u8]) -> Result<Option<Head>> {
    let mut passed = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(&bytes[passed..]) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(wrong("the bytes are not the head of an HTTP response")),
        };
        passed += len;
        let status = response.code.unwrap_or_default();
        match status {
            SWITCHING_PROTOCOLS => return Err(wrong("it switches to another protocol")),
            100..FINAL => {}
            FINAL..=MAX_STATUS => return finished(passed, status, &response).map(Some),
            _ => return Err(wrong("its status does not exist")),
        }
    }
}

fn finished(len: usize, status: u16, response: &httparse::Response<'_, '_>) -> Result<Head> {
    let http_1_1 = response.version == Some(1);
    let mut length = None;
    let mut chunked = false;
    let mut close = false;
    for header in response.headers.iter() {
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            let said = decimal(header.value).ok_or_else(|| wrong("its length is no number"))?;
            if length.is_some_and(|other| other != said) {
                return Err(wrong("it has two lengths"));
            }
            length = Some(said);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // Twice, or with another coding around it, nobody can tell what the bytes are.
            if chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(wrong("its transfer coding is not known"));
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            close |= header
                .value
                .split(|byte| *byte == b',')
                .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
    }
    let body = match (length, chunked) {
        (Some(_), true) => return Err(wrong("it has a length and chunks")),
        (None, true) if !http_1_1 => return Err(wrong("HTTP/1.0 knows no chunks")),
        _ if matches!(status, NO_CONTENT | NOT_MODIFIED) => Body::Length(0),
        (None, true) => Body::Chunked,
        (Some(length), false) => Body::Length(length),
        (None, false) => Body::UntilClose,
    };
    Ok(Head {
        len,
        status,
        body,
        reusable: http_1_1 && !close && body != Body::UntilClose,
        headers: response.headers.iter().map(owned).collect(),
    })
}

fn owned(header: &httparse::Header<'_>) -> (String, String) {
    (
        header.name.to_ascii_lowercase(),
        header.value.iter().copied().map(char::from).collect(),
    )
}

/// Digits and nothing else: `+5`, `0x5` and `5, 5` are lengths for some readers and not for others.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn wrong(detail: &'static str) -> Error {
    Error::Http { detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse(text.as_bytes()).unwrap().unwrap()
    }

    fn refused(lines: &str) -> bool {
        parse(format!("HTTP/1.1 200 OK\r\n{lines}\r\n").as_bytes()).is_err()
    }

    #[test]
    fn a_head_says_where_its_body_ends() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nDate: now\r\n\r\n{";
        let found = head(text);
        assert_eq!(found.len, text.len() - 1);
        assert_eq!((found.status, found.body), (200, Body::Length(12)));
        assert!(found.reusable);
        assert_eq!(found.headers[1], ("date".to_owned(), "now".to_owned()));
        let chunked = head("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n");
        assert_eq!(chunked.body, Body::Chunked);
        assert!(chunked.reusable);
        let endless = head("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(endless.body, Body::UntilClose);
        assert!(!endless.reusable);
        assert_eq!(head("HTTP/1.1 204 x\r\n\r\n").body, Body::Length(0));
    }

    #[test]
    fn a_connection_that_ends_is_not_used_again() {
        assert!(!head("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").reusable);
        for said in ["close", "Close", "x, close"] {
            let text =
                format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: {said}\r\n\r\n");
            assert!(!head(&text).reusable, "{said}");
        }
    }

    #[test]
    fn interim_responses_are_passed_over() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n";
        let text = format!("{interim}HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n");
        assert_eq!((head(&text).status, head(&text).len), (400, text.len()));
        assert_eq!(parse(interim.as_bytes()), Ok(None));
    }

    #[test]
    fn a_doubt_about_the_end_of_the_body_is_an_error() {
        for lines in [
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: -1\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\n 2\r\n",
            "Content-Length : 1\r\n",
        ] {
            assert!(refused(lines), "{lines:?}");
        }
        for text in [
            "HTTP/1.1 101 Switching\r\n\r\n",
            "HTTP/1.1 099 x\r\n\r\n",
            "HTTP/1.1 600 x\r\n\r\n",
            "HTTP/1.0 200 x\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/2 200 x\r\n\r\n",
            "<html>",
            "\0",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat());
        }

        #[test]
        fn a_part_of_a_head_is_never_taken_for_the_whole(cut in 0_usize..75) {
            let text = b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\nServer: some name\r\n\r\n";
            prop_assert_eq!(parse(&text[..cut]), Ok(None));
        }
    }
}
