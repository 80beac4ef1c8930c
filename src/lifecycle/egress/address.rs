//! Says which addresses are public, and which IPv4 addresses are embedded in
//! IPv6 addresses.
//!
//! For IPv4 this is a list of networks that are not public. For IPv6 it is a
//! list of those that are: nearly all of its space is unassigned, and networks
//! that are assigned later are refused until this list has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// IPv4 networks that are not public: this network, private, shared, loopback,
/// link-local with the clouds' metadata services, documentation, benchmarking,
/// relays, multicast and reserved, and one address that Azure uses internally.
const IPV4_NOT_PUBLIC: [Ipv4Net; 16] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([168, 63, 129, 16], 32),
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 88, 99, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
];

/// IPv6 network that global unicast addresses are assigned from.
const IPV6_GLOBAL: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Networks in [`IPV6_GLOBAL`] that are not public: protocol blocks with
/// Teredo, documentation twice, and 6to4.
const IPV6_NOT_PUBLIC: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

/// Standard prefix of NAT64, which a translator turns into IPv4.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
/// Prefix of NAT64 for local use.
const NAT64_LOCAL: Ipv6Net = v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48);
const TEREDO: Ipv6Net = v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
/// IPv4-compatible addresses, `::a.b.c.d`, long out of use.
const COMPATIBLE: Ipv6Net = v6([0; 8], 96);
/// IPv4-translated addresses, `::ffff:0:a.b.c.d`, for stateless translators.
const TRANSLATED: Ipv6Net = v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96);

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// Whether an address is public. A NAT64 address counts as public here; the
/// IPv4 address that [`embedded_ipv4`] finds in it has to be checked as well.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !IPV4_NOT_PUBLIC.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) if NAT64.contains(&address) => true,
        IpAddr::V6(address) => {
            IPV6_GLOBAL.contains(&address) && !IPV6_NOT_PUBLIC.iter().any(|net| net.contains(&address))
        }
    }
}

/// Returns the IPv4 addresses that a packet to this address may reach through
/// a translator or a tunnel.
pub fn embedded_ipv4(address: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(address) = address.to_canonical() else { return Vec::new() };
    let bytes = address.octets();
    let at = |from: usize| Ipv4Addr::new(bytes[from], bytes[from + 1], bytes[from + 2], bytes[from + 3]);
    let is_last = [NAT64, NAT64_LOCAL, COMPATIBLE, TRANSLATED].iter().any(|net| net.contains(&address))
        // ISATAP: any network, and then `0:5efe:a.b.c.d` or `200:5efe:a.b.c.d`.
        || matches!(bytes[8..12], [0 | 2, 0, 0x5e, 0xfe]);
    if SIX_TO_FOUR.contains(&address) {
        return vec![at(2)];
    }
    if TEREDO.contains(&address) {
        // The Teredo server, and the client with every bit inverted.
        return vec![at(4), Ipv4Addr::from_bits(!at(12).to_bits())];
    }
    // `::` and `::1` are IPv6 addresses of their own.
    if is_last && !address.is_unspecified() && !address.is_loopback() { vec![at(12)] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    #[test]
    fn every_network_that_is_not_public_ends_where_it_should() {
        // The last address before a network, its first, its last, and the first after it.
        for [before, first, last, after] in [
            ["", "0.0.0.0", "0.255.255.255", "1.0.0.0"],
            ["9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"],
            ["100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"],
            ["126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"],
            ["168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"],
            ["169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"],
            ["172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"],
            ["191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"],
            ["192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"],
            ["192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"],
            ["192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"],
            ["198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"],
            ["198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"],
            ["203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"],
            ["223.255.255.255", "224.0.0.0", "239.255.255.255", ""],
            ["", "240.0.0.0", "255.255.255.255", ""],
            ["", "::", "1fff:ffff::", "2000::"],
            ["2000:ffff::", "2001::", "2001:1ff:ffff::", "2001:200::"],
            ["2001:db7:ffff::", "2001:db8::", "2001:db8:ffff::", "2001:db9::"],
            ["2001:ffff::", "2002::", "2002:ffff::", "2003::"],
            ["3ffe:ffff::", "3fff::", "3fff:fff:ffff::", "3fff:1000::"],
            ["3fff:ffff::", "4000::", "ffff:ffff::", ""],
        ] {
            for public in [before, after].into_iter().filter(|text| !text.is_empty()) {
                assert!(is_public(address(public)), "{public}");
            }
            for inside in [first, last] {
                assert!(!is_public(address(inside)), "{inside}");
            }
        }
    }

    #[test]
    fn an_ipv4_address_is_found_wherever_it_hides() {
        for (text, inside) in [
            ("64:ff9b::7f00:1", &["127.0.0.1"][..]),
            ("64:ff9b::10.1.2.3", &["10.1.2.3"]),
            ("64:ff9b:1:2:3::169.254.169.254", &["169.254.169.254"]),
            ("2002:7f00:1::", &["127.0.0.1"]),
            ("2002:c0a8:101::c0a8:101", &["192.168.1.1"]),
            ("2001:0:a00:1:0:0:80ff:fffe", &["10.0.0.1", "127.0.0.1"]),
            ("::7f00:1", &["127.0.0.1"]),
            ("::ffff:0:127.0.0.1", &["127.0.0.1"]),
            ("2606:2800::5efe:10.0.0.1", &["10.0.0.1"]),
            ("2606:2800::200:5efe:10.0.0.1", &["10.0.0.1"]),
            ("::", &[]),
            ("::1", &[]),
            ("::ffff:10.0.0.1", &[]),
            ("2606:2800::1", &[]),
            ("93.184.216.34", &[]),
        ] {
            let addresses: Vec<String> = embedded_ipv4(address(text)).iter().map(Ipv4Addr::to_string).collect();
            assert_eq!(addresses, inside, "{text}");
        }
        assert!(!is_public(address("::ffff:10.0.0.1")), "a mapped one is what it stands for");
        assert!(is_public(address("::ffff:93.184.216.34")));
    }
}
