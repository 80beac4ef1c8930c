//! Tests the guard with several hundred hostile URLs and hostile DNS answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;

/// The outcome of a URL: it is malformed, forbidden, or fine.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum UrlOutcome {
    Invalid,
    Forbidden,
    Fine,
}

fn outcome(guard: &Guard, url: &str) -> UrlOutcome {
    match Target::read(url) {
        Err(_) => UrlOutcome::Invalid,
        Ok((_, target)) if guard.check(&target).is_err() => UrlOutcome::Forbidden,
        Ok(_) => UrlOutcome::Fine,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text} is no address"))
}

fn nets(nets: &[&str]) -> Vec<IpNet> {
    nets.iter().map(|net| crate::model::egress::read_network(net).unwrap()).collect()
}

fn allowing(allowed: &[&str]) -> Guard {
    Guard { allowed: nets(allowed), ..Guard::default() }
}

fn target(url: &str) -> Target {
    Target::read(url).unwrap_or_else(|problem| panic!("{url}: {problem}")).1
}

/// Addresses of every network that is not public, at least one each.
const INSIDE_V4: [&str; 34] = [
    "0.0.0.0",
    "0.0.0.1",
    "0.255.255.255",
    "10.0.0.0",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.17.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.254",
    "255.255.255.255",
];

const INSIDE_V6: [&str; 30] = [
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "::a9fe:a9fe",
    "::ffff:0:7f00:1",
    "::ffff:0:808:808",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:a00:1::80ff:fffe",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:1ff::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "2606:2800::5efe:10.0.0.1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
];

const PUBLIC: [&str; 16] = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "93.184.216.34",
    "100.63.255.255",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "223.255.255.255",
    "2606:2800:220:1::1",
    "2a00:1450::1",
    "2001:200::1",
    "2003::1",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
];

/// Returns the known ways to write an IPv4 address.
fn spellings(v4: Ipv4Addr) -> Vec<String> {
    let ([a, b, c, d], bits) = (v4.octets(), v4.to_bits());
    let wide = |text: String, digits: [char; 10]| -> String {
        text.chars().map(|c| c.to_digit(10).map_or(c, |digit| digits[digit as usize])).collect()
    };
    let full_width = ['０', '１', '２', '３', '４', '５', '６', '７', '８', '９'];
    let circled = ['⓪', '①', '②', '③', '④', '⑤', '⑥', '⑦', '⑧', '⑨'];
    vec![
        v4.to_string(),
        format!("{v4}."),
        bits.to_string(),
        format!("{bits}."),
        format!("{bits:#x}"),
        format!("{bits:#X}").replace("0X", "0x"),
        format!("0{bits:o}"),
        format!("0000000000{bits:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a:#x}.0{b:o}.{c}.{d}"),
        format!("{a}.{}", bits & 0xff_ffff),
        format!("{a}.{b}.{}", bits & 0xffff),
        format!("{a:#x}.{:#x}", bits & 0xff_ffff),
        wide(v4.to_string(), full_width),
        wide(v4.to_string(), circled),
        v4.to_string().replace('.', "。"),
        v4.to_string().replace('.', "．"),
        v4.to_string().replace('.', "｡"),
        format!("[::ffff:{v4}]"),
        format!("[::ffff:{:x}:{:x}]", bits >> 16, bits & 0xffff),
        format!("[0:0:0:0:0:FFFF:{v4}]"),
        format!("[::{v4}]"),
        format!("[::ffff:0:{v4}]"),
        format!("[64:ff9b::{v4}]"),
        format!("[64:ff9b:1::{v4}]"),
        format!("[2002:{:x}:{:x}::]", bits >> 16, bits & 0xffff),
        format!("[2001:0:{:x}:{:x}::]", bits >> 16, bits & 0xffff),
    ]
}

#[test]
fn an_address_inside_is_refused_however_it_is_written() {
    let guard = Guard { is_http_allowed: true, ..Guard::default() };
    let mut tried = 0;
    for inside in INSIDE_V4 {
        let IpAddr::V4(v4) = address(inside) else { panic!("{inside}") };
        for host in spellings(v4) {
            for url in [format!("http://{host}/"), format!("https://{host}:8443/x?y=z")] {
                assert_eq!(outcome(&guard, &url), UrlOutcome::Forbidden, "{url}");
                tried += 1;
            }
        }
    }
    for inside in INSIDE_V6 {
        let IpAddr::V6(v6) = address(inside) else { panic!("{inside}") };
        let [a, b, c, d, e, f, g, h] = v6.segments();
        for host in [v6.to_string(), format!("{a:04X}:{b:04x}:{c:x}:{d:x}:{e:x}:{f:x}:{g:x}:{h:04x}")] {
            assert_eq!(outcome(&guard, &format!("https://[{host}]/")), UrlOutcome::Forbidden, "{host}");
            tried += 1;
        }
    }
    assert!(tried > 1_900, "{tried}");
    for public in PUBLIC {
        let host = if public.contains(':') { format!("[{public}]") } else { public.to_owned() };
        assert_eq!(outcome(&guard, &format!("https://{host}/")), UrlOutcome::Fine, "{public}");
    }
}

#[test]
fn a_network_closes_the_same_addresses_in_either_form() {
    let open = allowing(&["::ffff:127.0.0.0/104", "10.0.0.0/8"]);
    for inside in ["127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "10.1.2.3"] {
        assert_eq!(open.check_address(address(inside)), Ok(()), "{inside}");
    }
    let closed =
        Guard { denied: nets(&["::ffff:127.0.0.0/104", "::ffff:8.8.8.8"]), ..allowing(&["0.0.0.0/0", "::/0"]) };
    for denied in ["127.0.0.1", "127.255.255.255", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "8.8.8.8"] {
        assert!(matches!(closed.check_address(address(denied)), Err(GuardRefusal::Denied(..))), "{denied}");
    }
    let without_six = Guard { denied: nets(&["::/0"]), ..Guard::default() };
    assert_eq!(without_six.check_address(address("8.8.8.8")), Ok(()), "::/0 means IPv6 alone");
    assert!(without_six.check_address(address("2606:2800::1")).is_err());
}

#[test]
fn an_unspecified_address_is_refused_whatever_is_open() {
    let guard = Guard { is_http_allowed: true, ..allowing(&["0.0.0.0/0", "::/0"]) };
    for unspecified in ["0.0.0.0", "::", "::ffff:0.0.0.0", "64:ff9b::", "2002::1", "2606:2800::5efe:0.0.0.0"] {
        let judged = guard.check_address(address(unspecified));
        assert!(matches!(judged, Err(GuardRefusal::Unspecified(_))), "{unspecified}: {judged:?}");
        let mixed = vec![address("8.8.8.8"), address(unspecified)];
        assert!(guard.allowed_addresses(&target("https://hooks.example.com/"), mixed).is_err(), "{unspecified}");
    }
    for host in ["0.0.0.0", "0", "0x0", "[::]", "[::ffff:0:0]"] {
        assert_eq!(outcome(&guard, &format!("http://{host}:8080/")), UrlOutcome::Forbidden, "{host}");
    }
    assert_eq!(guard.check_address(address("::1")), Ok(()), "all else is as the networks say");
}

#[test]
fn one_answer_inside_is_enough_to_refuse_a_name() {
    let guard = Guard::default();
    let hook = target("https://hooks.example.com/");
    let public: Vec<IpAddr> = PUBLIC.iter().map(|text| address(text)).collect();
    assert_eq!(guard.allowed_addresses(&hook, public.clone()).map(|found| found.len()), Ok(public.len()));
    for inside in INSIDE_V4.iter().chain(&INSIDE_V6).map(|text| address(text)) {
        assert!(guard.allowed_addresses(&hook, vec![inside]).is_err(), "{inside}");
        for index in [0, 7, public.len()] {
            let mut mixed = public.clone();
            mixed.insert(index, inside);
            assert!(guard.allowed_addresses(&hook, mixed).is_err(), "{inside} at {index}");
        }
        let IpAddr::V4(v4) = inside else { continue };
        assert!(guard.allowed_addresses(&hook, vec![v4.to_ipv6_mapped().into()]).is_err(), "{inside}, mapped");
    }
}

#[test]
fn names_for_this_machine_or_network_are_refused_however_they_are_written() {
    let guard = Guard { is_http_allowed: true, ..Guard::default() };
    for host in [
        "localhost",
        "LOCALHOST",
        "LocalHost",
        "localhost.",
        "a.localhost",
        "a.b.localhost.",
        "ｌｏｃａｌｈｏｓｔ",
        "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
        "local\u{ad}host",
        "loc\u{200b}alhost",
        "localho\u{17f}t",
        "localhost。",
        "x。localhost",
        "local",
        "printer.local",
        "printer.local.",
        "PRINTER.LOCAL",
        "kubernetes.default.svc.cluster.local",
        "internal",
        "metadata.google.internal",
        "metadata.google.internal.",
        "ip-10-0-0-1.ec2.internal",
        "a.INTERNAL",
        "host.docker.internal",
        "localhost.localdomain",
        "router.home.arpa",
        "home.arpa",
    ] {
        for scheme in ["http", "https"] {
            assert_eq!(outcome(&guard, &format!("{scheme}://{host}:8443/")), UrlOutcome::Forbidden, "{host}");
        }
    }
    for host in ["notlocalhost", "localhost.example.com", "internal.example.com", "mylocal", "home.arpa.example", "a.b"]
    {
        assert_eq!(outcome(&guard, &format!("https://{host}/")), UrlOutcome::Fine, "{host}");
    }
}

#[test]
fn a_local_name_is_called_when_all_its_addresses_are_opened() {
    let guard = allowing(&["10.0.0.0/8", "127.0.0.0/8"]);
    let service = target("https://hooks.cluster.local/");
    assert!(guard.check(&service).is_ok(), "it has to be looked up");
    assert!(guard.allowed_addresses(&service, vec![address("10.1.2.3")]).is_ok());
    assert_eq!(
        guard.allowed_addresses(&service, vec![address("10.1.2.3"), address("8.8.8.8")]),
        Err(GuardRefusal::Local("hooks.cluster.local".into())),
        "a public address was not opened"
    );
    assert_eq!(guard.check_unknown(&service), Err(GuardRefusal::Local("hooks.cluster.local".into())));
    // This machine has two addresses, of which one is open.
    let near = target("http://localhost:9000/");
    assert_eq!(guard.allowed_addresses(&near, known_addresses(&near.host).unwrap()), Ok(vec![address("127.0.0.1")]));
    assert!(Guard::default().check(&near).is_err());
    assert_eq!(
        allowing(&["::1/128"]).allowed_addresses(&near, known_addresses(&near.host).unwrap()),
        Ok(vec![address("::1")])
    );
}

#[test]
fn urls_that_cannot_be_meant_are_refused() {
    let guard = Guard { is_http_allowed: true, ..allowing(&["0.0.0.0/0", "::/0"]) };
    let long = format!("https://example.com/{}", "a".repeat(2_048));
    let long_label = format!("https://{}.example/", "a".repeat(64));
    let long_name = format!("https://{}example/", "abcdefg.".repeat(32));
    let many_dots = format!("https://a{}b/", ".".repeat(40));
    let mut urls: Vec<String> = [
        "",
        " ",
        "example.com",
        "//example.com/",
        "/hook",
        "https",
        "https:",
        "https:/",
        "https://",
        "https:///",
        "https:///example.com",
        "https:////example.com",
        "https:example.com",
        "https:/example.com",
        "https://?x",
        "https://#x",
        "https://:443/",
        "https://:@/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "ws://example.com/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "unix:///var/run/docker.sock",
        "dict://example.com:11211/",
        "httpss://example.com/",
        "jar:https://example.com!/",
        "https://user@example.com/",
        "https://user:pw@example.com/",
        "https://:pw@example.com/",
        "https://@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com:443@127.0.0.1/",
        "https://127.0.0.1@example.com/",
        "https://a@b@example.com/",
        "https://example.com%40127.0.0.1/",
        "https://example.com/#x",
        "https://example.com/#",
        "https://example.com\\@127.0.0.1/",
        "https:\\\\example.com/",
        "https://example.com\\x",
        "https://\\example.com/",
        "https://exa mple.com/",
        "https://example.com /",
        " https://example.com/",
        "https://example.com/ ",
        "https://example.com/a b",
        "https://exam\tple.com/",
        "https://example.com/\n",
        "https://example.com/\r\nHost: 127.0.0.1",
        "ht\ttps://example.com/",
        "https:\n//example.com/",
        "https://example.com/\0",
        "https://example.com/\u{7f}",
        "https://example.com/\u{85}",
        "https://example.com/\u{2028}",
        "https://example.com/\u{a0}",
        "https://exam\u{3000}ple.com/",
        "https://[::1",
        "https://::1/",
        "https://[::1]x/",
        "https://[]/",
        "https://[1.2.3.4]/",
        "https://[::g]/",
        "https://[::ffff:1.2.3]/",
        "https://[1:2:3:4:5:6:7:8:9]/",
        "https://[fe80::1%eth0]/",
        "https://[fe80::1%25eth0]/",
        "https://[v1.fe80::1]/",
        "https://1.2.3.4.5/",
        "https://1.2.3.256/",
        "https://256.1.1.1/",
        "https://4294967296/",
        "https://0x100000000/",
        "https://0x7f.0x0.0x0.0x1.1/",
        "https://a.1.2.3.09/",
        "https://example.1/",
        "https://08/",
        "https://127.0.0.1:99999/",
        "https://example.com:-1/",
        "https://example.com:a/",
        "https://example.com:65536/",
        "https://example.com:4 43/",
        "https://exa%6dple.com/",
        "https://%6c%6f%63%61%6c%68%6f%73%74/",
        "https://127%2e0%2e0%2e1/",
        "https://%31%32%37.0.0.1/",
        "https://example..com/",
        "https://.example.com/",
        "https://example.com../",
        "https://./",
        "https://../",
        "https://localhost../",
        "https://a*b.example/",
        "https://*.example/",
        "https://a,b.example/",
        "https://a;b.example/",
        "https://a=b.example/",
        "https://a!b.example/",
        "https://a$b.example/",
        "https://a'b.example/",
        "https://a\"b.example/",
        "https://a(b).example/",
        "https://{host}/",
        "https://a|b.example/",
        "https://a^b.example/",
        "https://a`b.example/",
        "https://<x>.example/",
        "https://xn--a/",
        "https://xn--.example/",
        "https://xn--zzzzzzzzzzzz.example/",
        "https://\u{202e}moc.elpmaxe/",
        "https://a\u{fffd}.example/",
        "https://\u{378}.example/",
    ]
    .map(str::to_owned)
    .into();
    urls.extend([long, long_label, long_name, many_dots]);
    // A URL may contain no control character and no space.
    for c in (0..=0x20_u8).chain([0x7f]).map(char::from) {
        for url in [
            format!("{c}https://example.com/"),
            format!("https{c}://example.com/"),
            format!("https://exam{c}ple.com/"),
            format!("https://example.com{c}/"),
            format!("https://example.com/{c}"),
        ] {
            urls.push(url);
        }
    }
    assert!(urls.len() > 280, "{}", urls.len());
    let wrong: Vec<_> = urls.iter().filter(|url| outcome(&guard, url) != UrlOutcome::Invalid).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ports_of_other_services_are_refused_unless_they_are_opened() {
    let (guard, opened) = (Guard::default(), Guard { ports: vec![5432, 25], ..Guard::default() });
    for port in SERVICE_PORTS {
        let url = format!("https://example.com:{port}/");
        assert_eq!(outcome(&guard, &url), UrlOutcome::Forbidden, "{port}");
        assert_eq!(guard.check(&target(&url)), Err(GuardRefusal::Port(port)));
        let is_opened = matches!(port, 5432 | 25);
        assert_eq!(outcome(&opened, &url) == UrlOutcome::Fine, is_opened, "{port}");
        // Opening a network does not open ports.
        let network = allowing(&["10.0.0.0/8"]);
        assert_eq!(network.check(&target(&format!("https://10.0.0.1:{port}/"))), Err(GuardRefusal::Port(port)));
    }
    let zero = Guard { ports: vec![0], ..Guard::default() };
    assert_eq!(zero.check(&target("https://example.com:0/")), Err(GuardRefusal::Port(0)), "nothing can listen there");
    for port in [80, 443, 1, 1024, 3000, 8080, 8443, 9000, 65535] {
        assert_eq!(outcome(&guard, &format!("https://example.com:{port}/")), UrlOutcome::Fine, "{port}");
    }
}

#[test]
fn what_is_denied_stays_closed_whatever_opens_it() {
    let guard =
        Guard { denied: nets(&["10.1.0.0/16", "8.8.8.0/24", "2606:2800::/32"]), ..allowing(&["0.0.0.0/0", "::/0"]) };
    for inside in
        ["10.1.2.3", "8.8.8.8", "2606:2800::1", "::ffff:10.1.2.3", "64:ff9b::8.8.8.8", "2002:a01:203::", "::10.1.2.3"]
    {
        assert!(matches!(guard.check_address(address(inside)), Err(GuardRefusal::Denied(..))), "{inside}");
    }
    for outside in ["10.2.0.1", "127.0.0.1", "8.8.4.4", "fd00::1", "64:ff9b::8.8.4.4"] {
        assert_eq!(guard.check_address(address(outside)), Ok(()), "{outside}");
    }
}

#[test]
fn what_is_opened_is_opened_in_every_writing_and_nothing_else_is() {
    let guard = allowing(&["127.0.0.0/8", "fd00:1::/32"]);
    for open in ["127.0.0.1", "127.200.0.1", "::ffff:127.0.0.1", "fd00:1::7"] {
        assert_eq!(guard.check_address(address(open)), Ok(()), "{open}");
    }
    for closed in ["10.0.0.1", "169.254.169.254", "::1", "fd00:2::7", "::7f00:1"] {
        assert!(guard.check_address(address(closed)).is_err(), "{closed}");
    }
    // Opening an IPv6 network does not open what is tunnelled through it.
    let wide = allowing(&["::/0"]);
    for closed in ["64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1", "2001:0:808:808::80ff:fffe"] {
        assert!(matches!(wide.check_address(address(closed)), Err(GuardRefusal::LeadsTo(..))), "{closed}");
    }
}

#[test]
fn the_gateway_is_not_called_through_itself() {
    let own = |text: &str| Guard { own: vec![text.parse::<SocketAddr>().unwrap()], ..allowing(&["0.0.0.0/0", "::/0"]) };
    let guard = own("127.0.0.1:8400");
    assert!(matches!(guard.check(&target("http://127.0.0.1:8400/")), Err(GuardRefusal::Own(_))));
    assert!(matches!(guard.check(&target("http://localhost:8400/")), Err(GuardRefusal::Own(_))));
    assert!(matches!(guard.check(&target("https://0.0.0.0:8400/")), Err(GuardRefusal::Unspecified(_))));
    assert_eq!(guard.check(&target("http://127.0.0.1:8401/")), Ok(()));
    let guard = Guard { own: vec![guard.own[0], "127.0.0.1:8401".parse().unwrap()], ..guard };
    for port in [8400, 8401] {
        assert!(
            matches!(guard.check(&target(&format!("http://127.0.0.1:{port}/"))), Err(GuardRefusal::Own(_))),
            "{port}"
        );
    }
    for everywhere in ["0.0.0.0:8400", "[::]:8400"] {
        let guard = own(everywhere);
        for near in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 9)] {
            let picked = guard.allowed_addresses(&target("https://hooks.example:8400/"), vec![near.into()]);
            assert!(matches!(picked, Err(GuardRefusal::Own(_))), "{near}: {picked:?}");
        }
        let far = IpAddr::from(Ipv6Addr::from([0x2606, 0x2800, 0, 0, 0, 0, 0, 1]));
        assert!(guard.allowed_addresses(&target("https://hooks.example:8400/"), vec![far]).is_ok());
        assert!(
            guard.allowed_addresses(&target("https://hooks.example:8401/"), vec![Ipv4Addr::LOCALHOST.into()]).is_ok()
        );
    }
}

#[test]
fn only_this_machine_is_called_without_encryption() {
    let guard = allowing(&["127.0.0.0/8", "::1/128", "10.0.0.0/8"]);
    for near in ["http://127.0.0.1:9000/", "http://localhost:9000/", "http://[::1]:9000/", "https://10.0.0.1/"] {
        assert_eq!(guard.check(&target(near)), Ok(()), "{near}");
    }
    assert_eq!(guard.check(&target("http://10.0.0.1/")), Err(GuardRefusal::Plain));
    let plain = target("http://hooks.example/");
    assert!(guard.allowed_addresses(&plain, vec![address("127.0.0.1")]).is_ok());
    assert_eq!(
        guard.allowed_addresses(&plain, vec![address("127.0.0.1"), address("8.8.8.8")]),
        Err(GuardRefusal::Plain)
    );
    assert_eq!(guard.check_unknown(&plain), Err(GuardRefusal::Plain));
    let open = Guard { is_http_allowed: true, ..guard };
    assert!(open.allowed_addresses(&plain, vec![address("8.8.8.8")]).is_ok());
    assert_eq!(open.check_unknown(&plain), Ok(()));
    // A forbidden address is reported before missing encryption.
    assert_eq!(open.check(&target("http://192.168.0.1/")), Err(GuardRefusal::NotPublic(address("192.168.0.1"))));
}

#[test]
fn the_operator_is_told_what_would_open_it() {
    let why = |url: &str| Guard::default().check(&target(url)).unwrap_err().to_string();
    assert!(why("http://127.0.0.1:9000/").ends_with("--allow-egress 127.0.0.0/8 opens it"));
    assert!(why("https://10.0.0.1/").ends_with("--allow-egress 10.0.0.1/32 opens it"));
    assert!(why("https://[fd00::1]/").ends_with("--allow-egress fd00::1/128 opens it"));
    assert!(why("https://[64:ff9b::a00:1]/").contains("leads to 10.0.0.1"));
    assert!(why("https://example.com:6379/").ends_with("--allow-port 6379 opens it"));
    assert!(why("https://x.internal/").contains("a name for this machine or its network"));
}
