//! The certificate of a client.

use std::sync::Arc;

use time::OffsetDateTime;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

/// A certificate that the TLS handshake has verified.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    /// The common name and the subject alternative names, at least one.
    names: Vec<Arc<str>>,
    /// The end of its validity.
    pub(crate) not_after: OffsetDateTime,
}

impl ClientCertificate {
    /// The client's certificate in a session. `None` if it sent none, or one without a name.
    pub(crate) fn of(session: &rustls::ServerConnection) -> Option<Self> {
        Self::parse(session.peer_certificates()?.first()?)
    }

    fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let alternative = alternative.iter().flat_map(|names| &names.value.general_names);
        let alternative = alternative.filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some(*name)
            }
            _ => None,
        });
        let usable = |name: &&str| !name.is_empty() && !name.chars().any(char::is_control);
        let names: Vec<_> = common.chain(alternative).filter(usable).map(Arc::from).collect();
        let not_after = certificate.validity().not_after.to_datetime();
        (!names.is_empty()).then_some(Self { names, not_after })
    }

    /// The device that it names: the common name, or the first alternative name if there is none.
    pub(crate) fn device(&self) -> &Arc<str> {
        &self.names[0]
    }

    /// The common name and the subject alternative names (DNS names, mail addresses and URIs).
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_name: Option<&str>, alternative: &[&str]) -> Option<ClientCertificate> {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names =
            alternative.iter().map(|name| SanType::URI((*name).try_into().unwrap())).collect();
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        ClientCertificate::parse(der.der())
    }

    #[test]
    fn the_device_is_the_common_name_or_else_the_first_alternative_name() {
        let names =
            |certificate: &ClientCertificate| certificate.names().map(str::to_owned).collect::<Vec<_>>();
        let both = certificate(Some("d1"), &["spiffe://site/d1"]).unwrap();
        assert_eq!(
            (&**both.device(), names(&both)),
            ("d1", vec!["d1".to_owned(), "spiffe://site/d1".to_owned()])
        );
        let alternative = certificate(None, &["spiffe://site/d2", "spiffe://site/d3"]).unwrap();
        assert_eq!(&**alternative.device(), "spiffe://site/d2");
    }

    #[test]
    fn a_certificate_without_a_usable_name_is_none() {
        assert!(certificate(None, &[]).is_none());
        assert!(certificate(Some(""), &[]).is_none());
        assert!(certificate(Some("d1\nok"), &[]).is_none());
    }
}
