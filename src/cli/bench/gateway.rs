//! Runs a gateway as a child process, on a temporary data directory.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

/// A running gateway process. Dropping it kills the process.
pub struct GatewayProcess {
    process: tokio::process::Child,
    address: SocketAddr,
    token: String,
    folder: tempfile::TempDir,
}

impl GatewayProcess {
    /// Starts this program as a gateway on an empty store.
    pub async fn start() -> anyhow::Result<Self> {
        // The folder is in the working directory, so that the measurement uses its disk.
        let folder = tempfile::tempdir_in(".").context("cannot create a folder for the measurement here")?;
        let mut process = tokio::process::Command::new(std::env::current_exe()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--allow-egress", "127.0.0.0/8", "--log", "warn", "--data"])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("the gateway has no output")?).lines();
        let address = loop {
            let Some(line) = lines.next_line().await? else { bail!("it ended before it served") };
            let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            if let Some(address) = address {
                break address;
            }
        };
        let file = folder.path().join("admin-token");
        let token =
            std::fs::read_to_string(&file).with_context(|| format!("it wrote no token to {}", file.display()))?;
        Ok(Self { process, address, token: token.trim().to_owned(), folder })
    }

    /// Returns the address of the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the admin token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Creates an endpoint without an effective rate limit.
    pub async fn create_endpoint(&self, url: &str) -> anyhow::Result<()> {
        let body = format!(r#"{{"url":"{url}","max_in_flight":256,"rate":{{"per_second":1000000,"burst":100000}}}}"#);
        self.call(Method::POST, "/v1/tenants/default/endpoints", &body).await.map(|_| ())
    }

    /// Makes a call to the API and returns the body of the answer.
    pub async fn call(&self, method: Method, path: &str, body: &str) -> anyhow::Result<String> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = hyper::Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            bail!("{method} {path} was answered {status}: {body}");
        }
        Ok(body)
    }

    /// Returns the CPU time that the process has used, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.process.id().and_then(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok());
        let fields = stat.as_deref().and_then(|stat| stat.rsplit(')').next());
        let ticks: f64 = fields
            .map(|fields| fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum())
            .unwrap_or(0.0);
        // The kernel counts CPU time in hundredths of a second.
        ticks / 100.0
    }

    /// Kills the process and removes its folder.
    pub async fn stop(mut self) {
        let _ = self.process.kill().await;
        let _ = self.folder.close();
    }
}
