//! A request to the service is signed: Signature Version 4, by the crate of AWS's own SDK.
//!
//! It is here because the client's own way to a signature (events, header classes, the walk of a
//! model) costs more than the whole answer to an empty poll. The crate derives its signing key
//! anew for each request, 1 µs of some 12; a cached key would mean canonical requests of our own.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{sign, SignableBody, SignableRequest, SigningSettings};
use aws_sigv4::sign::v4;
use aws_smithy_runtime_api::client::identity::Identity;

use crate::error::{Error, Result};

/// Seconds since the epoch that have a date of eight digits, as a signature needs it.
const SIGNABLE_SECONDS: std::ops::RangeInclusive<f64> = 0.0..=253_402_300_799.0;

/// Whose signature it is.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// The access key id.
    pub access: &'a str,
    /// The secret access key.
    pub secret: &'a str,
    /// The session token of temporary credentials.
    pub token: Option<&'a str>,
}

/// Where a request goes, and what its signature is good for.
pub struct Scope {
    url: String,
    region: String,
    service: String,
    /// The headers to sign beside host and date, names in lower case.
    headers: Vec<(String, String)>,
}

impl Scope {
    /// A scope for every request to `url` with these headers.
    #[must_use]
    pub fn new(
        url: String,
        region: String,
        service: String,
        headers: Vec<(String, String)>,
    ) -> Self {
        Self {
            url,
            region,
            service,
            headers,
        }
    }

    /// The headers that make the request a signed one: authorization, date, security token.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a time without a date, and for anything that HTTP cannot carry. The
    /// message holds none of it: it could be a secret.
    pub fn sign(&self, body: &[u8], keys: Keys<'_>, time: f64) -> Result<Vec<(String, String)>> {
        if !SIGNABLE_SECONDS.contains(&time) {
            return Err(Error::Argument {
                detail: "the time to sign with must be in the years 1970 to 9999",
            });
        }
        let refused = Error::Argument {
            detail: "the request cannot be signed: URL, header or credentials do not fit into HTTP",
        };
        let identity = Identity::from(Credentials::new(
            keys.access,
            keys.secret,
            keys.token.map(str::to_owned),
            None,
            "ruststream",
        ));
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(&self.service)
            // Whole seconds are all that a signature knows.
            .time(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(time.floor()))
            .settings(SigningSettings::default())
            .build()
            .map_err(|_| refused.clone())?
            .into();
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let request = SignableRequest::new("POST", &*self.url, headers, SignableBody::Bytes(body))
            .map_err(|_| refused.clone())?;
        let (instructions, _) = sign(request, &parameters)
            .map_err(|_| refused)?
            .into_parts();
        Ok(instructions
            .headers()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys<'static> = Keys {
        access: "AKIDEXAMPLE",
        secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        token: None,
    };

    fn scope(url: &str) -> Scope {
        Scope::new(
            url.to_owned(),
            "us-east-1".to_owned(),
            "kinesis".to_owned(),
            vec![("x-amz-target".to_owned(), "Kinesis_20131202.X".to_owned())],
        )
    }

    #[test]
    fn the_signature_names_what_it_covers() {
        let headers = scope("https://kinesis.us-east-1.example.com/")
            .sign(b"{}", KEYS, 1_440_938_160.9)
            .unwrap();
        let find = |wanted: &str| headers.iter().find(|(name, _)| name == wanted);
        assert_eq!(find("x-amz-date").unwrap().1, "20150830T123600Z");
        let authorization = &find("authorization").unwrap().1;
        assert!(authorization.contains("AKIDEXAMPLE/20150830/us-east-1/kinesis/aws4_request"));
        assert!(authorization.contains("SignedHeaders=host;x-amz-date;x-amz-target"));
        assert!(find("x-amz-security-token").is_none());
    }

    #[test]
    fn what_cannot_be_signed_is_refused_without_a_secret_in_the_message() {
        let broken = Keys {
            token: Some("a\nb"),
            ..KEYS
        };
        for (keys, time) in [
            (broken, 1e9),
            (KEYS, f64::NAN),
            (KEYS, -1.0),
            (KEYS, 1e300),
            (KEYS, f64::INFINITY),
        ] {
            let refused = scope("https://host/").sign(b"", keys, time).unwrap_err();
            assert!(!refused.to_string().contains("a\nb"), "{refused}");
        }
        assert!(scope("no url").sign(b"", KEYS, 1e9).is_err());
    }
}
