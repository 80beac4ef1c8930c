//! The way out: whatever URL, whatever its name resolves to, nothing is
//! called that may not be.
//!
//! The lists of addresses stand here a second time, as plain arithmetic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Uri;
use ipnet::IpNet;
use posthaste::lifecycle::egress::BadUrl;
use posthaste::lifecycle::egress::guard::{FORBIDDEN, Guard, GuardRefusal, known_addresses};
use posthaste::lifecycle::egress::target::{Host, Target};
use posthaste::model::egress::{DnsResolver, ProxyUrl, read_network};

/// The first line is a URL. Each other is an address that its name resolves
/// to, as text or as 8 or 32 hex digits, or a setting of the guard:
/// `allow NET`, `deny NET`, `port N`, `own ADDRESS:PORT`, `http`.
pub fn egress(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (url, rest) = text.split_once('\n').unwrap_or((text, ""));
    settings(url);
    let (guard, addresses) = read(rest);
    for address in &addresses {
        judge_address(&guard, *address);
    }
    let Ok((canonical, target)) = Target::read(url) else { return };
    written(url, canonical.as_str(), &target);
    judge_unresolved(&guard, &target);
    let resolved = known_addresses(&target.host).unwrap_or(addresses);
    if !resolved.is_empty() {
        judge_resolved(&guard, &target, &resolved);
    }
}

fn read(lines: &str) -> (Guard, Vec<IpAddr>) {
    let (mut guard, mut addresses) = (Guard::default(), Vec::new());
    for line in lines.lines().take(16) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("allow", net) => guard.allowed.extend(network(net)),
            ("deny", net) => guard.denied.extend(network(net)),
            ("port", port) => guard.ports.extend(port.parse::<u16>()),
            // One that listens everywhere would have to be asked of the machine.
            ("own", own) => {
                let own = own.parse().ok().filter(|own: &SocketAddr| !own.ip().to_canonical().is_unspecified());
                guard.own.extend(own);
            }
            ("http", _) => guard.is_http_allowed = true,
            (address, _) => addresses.extend(address.parse::<IpAddr>().ok().or_else(|| numbered(address))),
        }
    }
    (guard, addresses)
}

/// Reads a network, and holds what is read against what is written: the same
/// addresses, with IPv4 counted as `::ffff:0:0/96`.
fn network(text: &str) -> Option<IpNet> {
    let wide = |net: IpNet| match net {
        IpNet::V4(net) => (net.network().to_ipv6_mapped().to_bits(), u32::from(net.prefix_len()) + 96),
        IpNet::V6(net) => (net.network().to_bits(), u32::from(net.prefix_len())),
    };
    let written: Option<IpNet> = text.parse().ok().or_else(|| text.parse::<IpAddr>().map(IpNet::from).ok());
    let read = read_network(text).ok();
    match (written, read) {
        (None, read) => assert_eq!(read, None, "{text:?}"),
        (Some(written), Some(read)) => {
            assert_eq!(wide(read), wide(written), "{text:?}");
            assert!(matches!(read, IpNet::V4(_)) == (wide(read).1 >= 96 && wide(read).0 >> 32 == 0xffff), "{text:?}");
        }
        (Some(written), None) => {
            let IpNet::V6(six) = written else { panic!("{text:?} is refused") };
            assert!(six.addr().to_bits() >> 32 == 0xffff && six.prefix_len() < 96, "{text:?} is refused");
        }
    }
    read
}

fn numbered(hex: &str) -> Option<IpAddr> {
    match hex.len() {
        8 => u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(hex, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    }
}

/// Whether nobody of our own can be behind an IPv4 address.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_of_this_network = a == 0 || address.is_loopback() || address.is_private() || address.is_link_local();
    let is_shared = a == 100 && b / 64 == 1;
    let is_for_protocols = a == 192 && (b, c) == (0, 0) || (a, b, c) == (192, 88, 99);
    let is_for_tests = address.is_documentation() || a == 198 && b / 2 == 9;
    let is_for_nobody = a >= 224 || address.to_bits() == 0xa83f_8110;
    !(is_of_this_network || is_shared || is_for_protocols || is_for_tests || is_for_nobody)
}

/// The same of any address, but for what stands inside it.
fn is_public(address: IpAddr) -> bool {
    let bits = match address {
        IpAddr::V4(address) => return is_public_v4(address),
        IpAddr::V6(address) => address.to_bits(),
    };
    let top = (bits >> 96) as u32;
    let is_given_out = bits >> 125 == 1;
    let is_special = top >> 9 == 0x2001_0000 >> 9 || top == 0x2001_0db8 || top >> 16 == 0x2002 || top >> 12 == 0x3_fff0;
    is_given_out && !is_special || bits >> 32 == 0x0064_ff9b_u128 << 64
}

/// Every address at which a packet to this one may end: itself, and what
/// tunnels and translators make of it.
fn ends(address: IpAddr) -> Vec<IpAddr> {
    let v4 = |bits: u128| IpAddr::V4(Ipv4Addr::from_bits(bits as u32));
    let IpAddr::V6(six) = address else { return vec![address] };
    let bits = six.to_bits();
    if bits >> 32 == 0xffff {
        return vec![v4(bits)];
    }
    let mut ends = vec![address];
    if bits >> 112 == 0x2002 {
        ends.push(v4(bits >> 80));
    } else if bits >> 96 == 0x2001_0000 {
        ends.extend([v4(bits >> 64), v4(!bits)]);
    } else if bits > 1 {
        let is_isatap = bits >> 32 & 0xfdff_ffff == 0x0000_5efe;
        let is_translated = [0, 0xffff_0000, 0x0064_ff9b << 64].contains(&(bits >> 32));
        if is_isatap || is_translated || bits >> 80 == 0x0064_ff9b_0001 {
            ends.push(v4(bits));
        }
    }
    ends
}

fn is_in(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

fn may_be_called(guard: &Guard, address: IpAddr) -> bool {
    let is_open = |end: IpAddr| {
        !end.is_unspecified() && !is_in(&guard.denied, end) && (is_in(&guard.allowed, end) || is_public(end))
    };
    ends(address).into_iter().all(is_open)
}

fn judge_address(guard: &Guard, address: IpAddr) {
    let judged = guard.check_address(address);
    assert_eq!(judged.is_ok(), may_be_called(guard, address), "{address}: {judged:?}");
    if let Err(why) = judged {
        says_why(guard, &why);
    }
}

/// A refusal is true, and shows nothing to strangers.
fn says_why(guard: &Guard, why: &GuardRefusal) {
    match why {
        GuardRefusal::NotPublic(address) => assert!(!may_be_called(guard, *address)),
        GuardRefusal::LeadsTo(address, inner) => {
            assert!(ends(*address).contains(&IpAddr::V4(*inner)) && !is_public_v4(*inner));
        }
        GuardRefusal::Unspecified(address) => assert!(ends(*address).iter().any(IpAddr::is_unspecified)),
        GuardRefusal::Denied(address, net) => assert!(guard.denied.contains(net) && net.contains(address)),
        GuardRefusal::Own(address) => assert!(guard.own.iter().any(|own| own.port() == address.port())),
        GuardRefusal::Port(port) => assert!(!guard.ports.contains(port) || *port == 0),
        GuardRefusal::Local(_) => {}
        GuardRefusal::Plain => assert!(!guard.is_http_allowed),
    }
    let told = BadUrl::from(why.clone()).to_string();
    let is_named = matches!(
        why,
        GuardRefusal::Plain | GuardRefusal::Port(_) | GuardRefusal::Own(_) | GuardRefusal::Unspecified(_)
    );
    assert!(told == FORBIDDEN || is_named, "{told}");
}

/// What is kept of a URL means what was written, to us and to whoever reads
/// it next.
fn written(text: &str, canonical: &str, target: &Target) {
    assert_eq!(
        Target::read(canonical).map(|(url, target)| (url.to_string(), target)),
        Ok((canonical.to_owned(), target.clone())),
        "{text:?}"
    );
    let uri: Uri = canonical.parse().expect("what is kept can be requested");
    assert_eq!(Target::of(&uri).as_ref(), Some(target), "{canonical:?} leads elsewhere");
    assert_eq!(canonical.starts_with("https://"), target.is_tls);
    assert!(target.is_tls || canonical.starts_with("http://"));
    assert!(canonical.bytes().all(|byte| byte.is_ascii_graphic()), "{canonical:?}");

    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
    let authority = text.split("://").nth(1).unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    assert!(!text.contains(odd) && !text.contains('#') && !authority.contains(['@', '%']), "{text:?} is mended");
    let as_written = authority.split(':').next().and_then(classic);
    match &target.host {
        Host::Name(name) => {
            assert!(as_written.is_none() && classic(name).is_none(), "{text:?} is an address to others");
            assert!(name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len())), "{name}");
            assert!(!name.contains(|c: char| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.')), "{name}");
        }
        Host::Address(address) => {
            assert!(as_written.is_none_or(|classic| IpAddr::V4(classic) == *address), "{text:?} is {address}");
            assert_eq!(address.to_canonical(), *address);
        }
    }
}

/// An IPv4 address as the C library has read it for forty years: one to four
/// numbers, of which the last fills what is left.
fn classic(text: &str) -> Option<Ipv4Addr> {
    let number = |part: &str| match part.as_bytes() {
        [b'0', b'x' | b'X', digits @ ..] if digits.iter().all(u8::is_ascii_hexdigit) => {
            u32::from_str_radix(&part[2..], 16).ok()
        }
        [b'0', _, ..] if part.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) => u32::from_str_radix(part, 8).ok(),
        digits if digits.iter().all(u8::is_ascii_digit) => part.parse().ok(),
        _ => None,
    };
    let numbers: Vec<u32> = text.strip_suffix('.').unwrap_or(text).split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = numbers.split_last()?;
    if first.len() > 3 || first.iter().any(|byte| *byte > 255) || u64::from(*last) >> (32 - 8 * first.len()) > 0 {
        return None;
    }
    let high = first.iter().zip([24, 16, 8]).fold(0, |bits, (byte, shift)| bits | byte << shift);
    Some(Ipv4Addr::from_bits(high | last))
}

fn judge_unresolved(guard: &Guard, target: &Target) {
    let unknown = guard.check_unknown(target);
    match guard.check(target) {
        Err(why) => {
            says_why(guard, &why);
            assert!(unknown.is_err(), "what is refused stays refused");
        }
        Ok(()) => {
            judge_port(guard, target.port);
            match &target.host {
                Host::Address(address) => assert!(may_be_called(guard, *address), "{address}"),
                Host::Name(name) => assert!(!is_local(name) || !guard.allowed.is_empty(), "{name}"),
            }
        }
    }
    if unknown.is_ok() {
        assert!(target.is_tls || guard.is_http_allowed || matches!(target.host, Host::Address(_)));
        assert!(!matches!(&target.host, Host::Name(name) if is_local(name)));
    }
}

fn judge_resolved(guard: &Guard, target: &Target, resolved: &[IpAddr]) {
    let given: Vec<IpAddr> = resolved.iter().map(IpAddr::to_canonical).collect();
    let picked = match guard.allowed_addresses(target, resolved.to_vec()) {
        Ok(picked) => picked,
        Err(why) => return says_why(guard, &why),
    };
    judge_port(guard, target.port);
    assert!(!picked.is_empty() && picked.iter().all(|address| may_be_called(guard, *address)), "{picked:?}");
    let (is_local, is_here) = match &target.host {
        Host::Name(name) => (is_local(name), is_below(name, "localhost")),
        Host::Address(_) => (false, false),
    };
    match is_here {
        true => assert!(picked.iter().all(|address| given.contains(address))),
        false => assert_eq!(picked, given, "one that may not be called closes all"),
    }
    if is_local {
        assert!(picked.iter().all(|address| is_in(&guard.allowed, *address)), "{picked:?}");
    }
    assert!(target.is_tls || guard.is_http_allowed || picked.iter().all(IpAddr::is_loopback), "{picked:?}");
    let own = guard.own.iter().filter(|own| own.port() == target.port).map(|own| own.ip().to_canonical());
    for own in own {
        assert!(!picked.contains(&own));
    }
}

/// Some of the ports at which a line of text does harm.
fn judge_port(guard: &Guard, port: u16) {
    assert!(port != 0 && (guard.ports.contains(&port) || ![22, 25, 53, 445, 3306, 5432, 6379, 11211].contains(&port)));
}

fn is_local(name: &str) -> bool {
    ["localhost", "localdomain", "local", "internal", "home.arpa"].iter().any(|zone| is_below(name, zone))
}

fn is_below(name: &str, zone: &str) -> bool {
    name == zone || name.ends_with(&format!(".{zone}"))
}

/// Resolvers and proxies that are named in settings: what is shown of them
/// reads as the same, and never shows a password.
fn settings(text: &str) {
    if let Ok(dns) = text.parse::<DnsResolver>() {
        assert_eq!(dns.to_string().parse(), Ok(dns));
    }
    if let Ok(proxy) = text.parse::<ProxyUrl>() {
        let again: ProxyUrl = proxy.to_string().parse().expect("what is shown can be read");
        let place = |proxy: &ProxyUrl| (proxy.kind, proxy.host.clone(), proxy.port);
        assert_eq!(place(&again), place(&proxy));
        let shown = proxy.login.is_some().then(|| ("***".to_owned(), String::new()));
        assert_eq!(again.login, shown, "{proxy}");
    }
}
