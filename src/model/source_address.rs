//! Source addresses: where connections to receivers come from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that connections to receivers come from: at most one of each kind.
/// Without any, the machine chooses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceAddresses {
    /// Source of connections to IPv4 addresses.
    pub v4: Option<Ipv4Addr>,
    /// Source of connections to IPv6 addresses.
    pub v6: Option<Ipv6Addr>,
}

impl SourceAddresses {
    /// Returns all source addresses.
    pub fn all(&self) -> Vec<IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6)).collect()
    }

    /// Whether the machine chooses the source of every connection.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// Returns the source of connections to an address, if one is set.
    pub fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        match to {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Whether an address can be called from these. Where some are set, no connection
    /// comes from any other address.
    pub fn reaches(&self, to: IpAddr) -> bool {
        self.is_empty() || self.source_for(to).is_some()
    }
}

impl FromStr for SourceAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sources = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let address = part.parse::<IpAddr>().map_err(|_| {
                format!("{part:?} is not an address of this machine; write one like 192.0.2.7, without a port")
            })?;
            let is_taken = match address.to_canonical() {
                address if address.is_unspecified() => {
                    return Err(format!("{part:?} stands for any address; name one, or leave it out"));
                }
                IpAddr::V4(address) => sources.v4.replace(address).is_some(),
                IpAddr::V6(address) => sources.v6.replace(address).is_some(),
            };
            if is_taken {
                return Err(format!(
                    "{text:?} has two addresses of one kind; name one IPv4 and one IPv6 address at most"
                ));
            }
        }
        Ok(sources)
    }
}

impl fmt::Display for SourceAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.all().iter().map(IpAddr::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SourceAddresses, String> {
        text.parse()
    }

    #[test]
    fn there_is_one_address_of_each_kind_at_most() {
        for text in ["", "192.0.2.7", "2001:db8::7", "192.0.2.7,2001:db8::7"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read(" ::ffff:192.0.2.7 ").unwrap().to_string(), "192.0.2.7");
        for text in ["192.0.2.7,192.0.2.8", "eth0", "192.0.2.7:80", "0.0.0.0", "::"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_kind_without_a_source_is_not_called_once_the_other_has_one() {
        let (four, six): (IpAddr, IpAddr) = ([203, 0, 113, 1].into(), Ipv6Addr::LOCALHOST.into());
        assert!(read("").unwrap().reaches(four) && read("").unwrap().reaches(six));
        let only = read("192.0.2.7").unwrap();
        assert!(only.reaches(four) && !only.reaches(six));
        assert_eq!(only.source_for(four), Some("192.0.2.7".parse().unwrap()));
    }
}
