//! The proxies of `deploy`, really started: nginx, Caddy and HAProxy before a gateway,
//! with TLS, the limits, who may reach what, and whose address is believed.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::servers::guard::free_port;
use crate::support::{Gateway, Options, Receiver, eventually};

/// The name that the examples serve.
const NAME: &str = "hooks.example.com";
/// A client in the network that the examples let in, as the test fills it in.
const INSIDE: &str = "127.0.0.2";
/// A client anywhere else.
const OUTSIDE: &str = "127.0.0.3";

/// One of the examples: how the test starts it.
struct Example {
    file: &'static str,
    /// Texts of the file and what stands there in the test.
    replaced: &'static [(&'static str, &'static str)],
    /// What the test puts around the file.
    wrapped: (&'static str, &'static str),
    /// The program with its arguments; <file> is the file.
    command: &'static [&'static str],
    package: &'static str,
}

const NGINX: Example = Example {
    file: "deploy/nginx/posthaste.conf",
    replaced: &[("listen 443 ssl", "listen 127.0.0.1:<port> ssl")],
    wrapped: (
        "daemon off; master_process off; pid <folder>/pid; error_log <folder>/log; events {}\n\
         http { access_log <folder>/access; client_body_temp_path <folder>/body; proxy_temp_path <folder>/proxy;\n\
         fastcgi_temp_path <folder>/fastcgi; uwsgi_temp_path <folder>/uwsgi; scgi_temp_path <folder>/scgi;\n",
        "}\n",
    ),
    command: &["/usr/sbin/nginx", "-p", "<folder>", "-e", "<folder>/log", "-c", "<file>"],
    package: "nginx-light",
};

const CADDY: Example = Example {
    file: "deploy/caddy/Caddyfile",
    replaced: &[
        ("hooks.example.com {", "https://hooks.example.com:<port> {\n\tbind 127.0.0.1"),
        (
            "\tservers {",
            "\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system <folder>/caddy\n\tservers {",
        ),
    ],
    wrapped: ("", ""),
    command: &["caddy", "run", "--adapter", "caddyfile", "--config", "<file>"],
    package: "caddy",
};

const HAPROXY: Example = Example {
    file: "deploy/haproxy/posthaste.cfg",
    replaced: &[("bind :443", "bind 127.0.0.1:<port>"), ("port 8401", "port <health>")],
    wrapped: ("", ""),
    command: &["/usr/sbin/haproxy", "-db", "-f", "<file>"],
    package: "haproxy",
};

/// A running proxy, and what a client needs to reach it. It ends with the test.
struct RunningProxy {
    _process: Child,
    port: u16,
    folder: tempfile::TempDir,
    log: std::path::PathBuf,
}

/// What came back for a request through a proxy.
struct ProxyAnswer {
    status: u16,
    body: String,
}

impl ProxyAnswer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not of the gateway: {}", self.body))
    }
}

impl RunningProxy {
    /// Starts an example on this port before a gateway at this address.
    async fn start(example: &Example, port: u16, gateway: &str, health: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec![NAME.into()]).unwrap().self_signed(&key).unwrap();
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        for (name, text) in
            [("certificate.pem", &certificate), ("key.pem", &key), ("both.pem", &format!("{certificate}{key}"))]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let mut text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(example.file)).unwrap();
        let common = [("/etc/ssl/posthaste/", "<folder>/"), ("127.0.0.1:8400", gateway), ("10.0.0.0/8", INSIDE)];
        for (from, to) in common.iter().chain(example.replaced) {
            assert!(text.contains(from), "{} has no {from:?} any more", example.file);
            text = text.replace(from, to);
        }
        let text = format!("{}{text}{}", example.wrapped.0, example.wrapped.1);
        let (_, health_port) = health.rsplit_once(':').unwrap();
        let fill = |text: &str| {
            text.replace("<folder>", &path).replace("<port>", &port.to_string()).replace("<health>", health_port)
        };
        let file = folder.path().join("configuration");
        std::fs::write(&file, fill(&text)).unwrap();
        let log = folder.path().join("output");
        let output = std::fs::File::create(&log).unwrap();
        let args = example.command[1..].iter().map(|arg| fill(arg).replace("<file>", &file.display().to_string()));
        let process = Command::new(example.command[0])
            .args(args)
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|_| panic!("there is no {}: run ./check, which installs it", example.package));
        Self { _process: process, port, folder, log }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{NAME}:{}{path}", self.port)
    }

    fn curl(&self, from: &str, args: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "--interface", from, "--cacert"])
            .arg(self.folder.path().join("certificate.pem"))
            .args(["--resolve", &format!("{NAME}:{}:127.0.0.1", self.port)])
            .args(args)
            .kill_on_drop(true);
        curl
    }

    /// Makes a request from an address of this machine.
    async fn ask(&self, from: &str, path: &str, args: &[&str]) -> Result<ProxyAnswer, String> {
        let url = self.url(path);
        let output = self.curl(from, args).args(["-w", "\n%{http_code}", &url]).output().await.expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or_default();
        match status.parse() {
            Ok(status) if status > 0 => Ok(ProxyAnswer { status, body: body.to_owned() }),
            _ => Err(format!(
                "{url} from {from}: {}\n{}",
                String::from_utf8_lossy(&output.stderr),
                std::fs::read_to_string(&self.log).unwrap_or_default()
            )),
        }
    }

    async fn answer(&self, from: &str, path: &str, args: &[&str]) -> ProxyAnswer {
        self.ask(from, path, args).await.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until a request from inside gets an answer that is not the proxy's own.
    async fn ready(&self, path: &str) {
        eventually("the proxy to serve", || async {
            match self.ask(INSIDE, path, &[]).await {
                Ok(answer) if answer.status < 500 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.body)),
                Err(why) => Err(why),
            }
        })
        .await;
    }
}

/// A gateway behind an example, and the proxy.
async fn behind(example: &Example) -> (Gateway, RunningProxy) {
    let (port, health) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let public = format!("https://{NAME}:{port}");
    let flags = ["--trusted-proxies", "127.0.0.1/32", "--public-url", &public, "--health-listen", &health];
    let gateway = Gateway::start_with(Options::flags(&flags)).await;
    let proxy = RunningProxy::start(example, port, &gateway.address.to_string(), &health).await;
    proxy.ready("/v1/tenants").await;
    (gateway, proxy)
}

/// What every example promises.
async fn serves_as_it_says(example: Example) {
    let (gateway, proxy) = behind(&example).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url(), "format": "thin"})).await;
    let bearer = format!("Authorization: Bearer {}", gateway.token());
    let send = |id: &str| json!({"id": id, "type": "t", "data": {"secret": "of receivers"}}).to_string();
    let path = "/v1/tenants/default/events";

    // An event is accepted over TLS, and delivered.
    let accepted = proxy.answer(INSIDE, path, &["-H", &bearer, "-d", &send("through")]).await;
    assert_eq!((accepted.status, &accepted.json()["id"]), (202, &json!("through")), "{}", accepted.body);
    let seen = receiver.wait_for(1).await.pop().unwrap();

    // So is one with a head that is nearly as large as the gateway takes.
    let long: Vec<String> = (0..4).map(|n| format!("X-Long-{n}: {}", "x".repeat(12 * 1_024))).collect();
    let long: Vec<&str> = long.iter().flat_map(|line| ["-H", line]).collect();
    let event = send("long-head");
    let accepted = proxy.answer(INSIDE, path, &[&["-H", &bearer, "-d", &event], &long[..]].concat()).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);

    // The rest is closed to the outside; what receivers fetch is open.
    let refused = proxy.answer(OUTSIDE, path, &["-H", &bearer]).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    let link = seen.json()["data_url"].as_str().unwrap().to_owned();
    let fetched = link.strip_prefix(&proxy.url("")).unwrap_or_else(|| panic!("{link} does not lead to the proxy"));
    let fetched = proxy.answer(OUTSIDE, fetched, &[]).await;
    assert!(fetched.status == 200 && fetched.body.contains("of receivers"), "{} {}", fetched.status, fetched.body);
    for probe in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(proxy.answer(INSIDE, probe, &["-H", &bearer]).await.status, 404, "{probe}");
    }

    // The link is a secret, and stands in no log of the proxy.
    for entry in std::fs::read_dir(proxy.folder.path()).unwrap() {
        let text = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&text).contains(link.rsplit('/').next().unwrap()), "the proxy logs links");
    }

    customers_reach_their_portal_and_no_page_of_operators(&gateway, &proxy).await;
    an_address_is_seen_and_none_is_made_up(&gateway, &proxy, &bearer).await;
    too_much_is_refused_by_the_gateway(&gateway, &proxy, &bearer).await;
}

/// A customer opens a link from anywhere, signs in with its code and sees the portal with
/// its assets; the operators' pages are opened from inside alone.
async fn customers_reach_their_portal_and_no_page_of_operators(gateway: &Gateway, proxy: &RunningProxy) {
    let link = json!({"rights": ["read"]});
    let link = gateway.client.post_json("/v1/tenants/default/portal-links", &link).await.expect(201);
    let link =
        link["url"].as_str().unwrap().strip_prefix(&proxy.url("")).expect("the link leads to the proxy").to_owned();
    let (page, code) = link.split_once('#').unwrap();
    let shown = proxy.answer(OUTSIDE, page, &[]).await;
    assert_eq!(shown.status, 200, "{}", shown.body);
    let jar = proxy.folder.path().join("cookies").display().to_string();
    let origin = format!("Origin: {}", proxy.url(""));
    let form = format!("code={code}");
    let entered = proxy.answer(OUTSIDE, page, &["-c", &jar, "-H", &origin, "-d", &form]).await;
    assert_eq!(entered.status, 303, "{}", entered.body);
    for path in ["/portal", "/portal/endpoints"] {
        let shown = proxy.answer(OUTSIDE, path, &["-b", &jar]).await;
        assert!(
            shown.status == 200 && shown.body.contains(">Endpoints</a>"),
            "{path}: {} {}",
            shown.status,
            shown.body
        );
        let style = shown.body.split("/assets/").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        assert_eq!(proxy.answer(OUTSIDE, &format!("/assets/{style}"), &[]).await.status, 200, "{style}");
    }
    // A path that begins like the portal's leads nowhere else, however it is written.
    let bearer = format!("Authorization: Bearer {}", gateway.token());
    for path in ["/portal/../v1/tenants", "/portal/%2e%2e/v1/tenants", "/assets/../tenants", "/portal/..%2fv1/tenants"]
    {
        let refused = proxy.answer(OUTSIDE, path, &["--path-as-is", "-b", &jar, "-H", &bearer]).await;
        assert!(matches!(refused.status, 400 | 403 | 404), "{path}: {} {}", refused.status, refused.body);
    }
    for path in ["/", "/sign-in", "/tenants", "/endpoints", "/portals"] {
        assert_eq!(proxy.answer(OUTSIDE, path, &["-b", &jar]).await.status, 403, "{path}");
    }
    let (operator, token) = (proxy.folder.path().join("operator"), format!("token={}", gateway.token()));
    let operator = operator.display().to_string();
    let entered = proxy.answer(INSIDE, "/sign-in", &["-c", &operator, "-H", &origin, "-d", &token]).await;
    assert_eq!(entered.status, 303, "{}", entered.body);
    let shown = proxy.answer(INSIDE, "/", &["-b", &operator]).await;
    assert!(shown.status == 200 && shown.body.contains(">Cluster</a>"), "{} {}", shown.status, shown.body);
}

/// The audit log has the address of the client, whatever the client claims.
async fn an_address_is_seen_and_none_is_made_up(gateway: &Gateway, proxy: &RunningProxy, bearer: &str) {
    for (tenant, claimed) in [("honest", None), ("claims", Some("X-Forwarded-For: 203.0.113.9, 127.0.0.1"))] {
        let mut args = vec!["-X", "PUT", "-H", bearer, "-d", "{}"];
        args.extend(claimed.iter().flat_map(|claimed| ["-H", *claimed]));
        let made = proxy.answer(INSIDE, &format!("/v1/tenants/{tenant}"), &args).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let audit = gateway.list(&format!("/v1/tenants/{tenant}/audit")).await;
        let from: Vec<&Value> = audit.iter().map(|entry| &entry["from"]).collect();
        assert_eq!(from, [INSIDE], "{tenant}");
    }
}

/// Above the largest event the gateway answers, in its own words.
async fn too_much_is_refused_by_the_gateway(gateway: &Gateway, proxy: &RunningProxy, bearer: &str) {
    let large = proxy.folder.path().join("large.json");
    for (id, bytes) in [("large", 1_000_000), ("too-large", 3_000_000)] {
        let event = json!({"id": id, "type": "t", "data": "x".repeat(bytes)});
        std::fs::write(&large, event.to_string()).unwrap();
        let file = format!("@{}", large.display());
        let args = ["-H", bearer, "-H", "Expect:", "--data-binary", &file];
        let answer = proxy.answer(INSIDE, "/v1/tenants/default/events", &args).await;
        if id == "large" {
            assert_eq!(answer.status, 202, "{}", answer.body);
        } else {
            assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("payload_too_large")), "{}", answer.body);
        }
    }
    gateway.client.get("/v1/tenants/default/events/large").await.expect(200);
    gateway.client.get("/v1/tenants/default/events/too-large").await.problem(404, "not_found");
}

/// Serves one request at this address: writes a line, and the second one when it is told.
async fn stream_two_lines(listener: TcpListener, go_on: tokio::sync::oneshot::Receiver<()>) {
    let mut go_on = Some(go_on);
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        if !head.starts_with(b"GET /v1/stream") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            continue;
        }
        // A length that is known tempts proxies to wait for the rest.
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 13\r\n\r\n";
        stream.write_all(format!("{head}first\n").as_bytes()).await.unwrap();
        go_on.take().expect("one stream is asked for").await.unwrap();
        stream.write_all(b"second\n").await.unwrap();
        return;
    }
}

/// A line of a stream passes while the rest of it is not written yet.
async fn passes_streams(example: Example) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap().to_string();
    let (told, go_on) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(stream_two_lines(listener, go_on));
    let proxy = RunningProxy::start(&example, free_port(), &upstream, &upstream).await;
    proxy.ready("/v1/other").await;
    let mut reader =
        proxy.curl(INSIDE, &["-N", &proxy.url("/v1/stream")]).stdout(Stdio::piped()).spawn().expect("curl runs");
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("first"));
    told.send(()).unwrap();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("second"));
    assert!(reader.wait().await.unwrap().success());
    serving.await.unwrap();
}

/// The gateway's own stream of attempts passes, line by line.
#[tokio::test]
async fn the_tail_of_a_gateway_is_read_through_nginx_while_it_goes_on() {
    let (gateway, proxy) = behind(&NGINX).await;
    let receiver = Receiver::start().await;
    gateway.create_endpoint(json!({"url": receiver.url()})).await;
    let bearer = format!("Authorization: Bearer {}", gateway.token());
    // The answer's head comes with the stream, so what is sent after it is in it.
    let args = ["-N", "-i", "-H", &bearer, &proxy.url("/v1/tail?for=60s")];
    let mut reader = proxy.curl(INSIDE, &args).stdout(Stdio::piped()).spawn().expect("curl runs");
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(crate::support::PATIENCE, lines.next_line()).await.expect("a line in time");
        line.unwrap().expect("the stream goes on")
    };
    assert!(next().await.contains(" 200"), "the stream is open");
    while !next().await.is_empty() {}
    for id in ["first", "second"] {
        gateway.send(json!({"id": id, "type": "t", "data": 1})).await;
        while !next().await.contains(&format!("\"event\":\"{id}\"")) {}
    }
    reader.kill().await.unwrap();
}

#[tokio::test]
async fn nginx_serves_as_its_example_says() {
    serves_as_it_says(NGINX).await;
}

#[tokio::test]
async fn caddy_serves_as_its_example_says() {
    serves_as_it_says(CADDY).await;
}

#[tokio::test]
async fn haproxy_serves_as_its_example_says() {
    serves_as_it_says(HAPROXY).await;
}

#[tokio::test]
async fn nginx_holds_no_stream_back() {
    passes_streams(NGINX).await;
}

#[tokio::test]
async fn caddy_holds_no_stream_back() {
    passes_streams(CADDY).await;
}

#[tokio::test]
async fn haproxy_holds_no_stream_back() {
    passes_streams(HAPROXY).await;
}
