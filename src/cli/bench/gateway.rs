//! A gateway of its own process, on a folder that goes away with it.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

/// A running gateway. Dropped, it is ended.
pub struct GatewayProcess {
    process: tokio::process::Child,
    address: SocketAddr,
    token: String,
    folder: tempfile::TempDir,
}

impl GatewayProcess {
    /// Starts this very program as a gateway on an empty store.
    pub async fn start() -> anyhow::Result<Self> {
        // Beside the working directory, so that it is the same kind of disk.
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

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What lets one in.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Gives it one endpoint that may be called as fast as it can take it.
    pub async fn create_endpoint(&self, url: &str) -> anyhow::Result<()> {
        let body = format!(r#"{{"url":"{url}","max_in_flight":256,"rate":{{"per_second":1000000,"burst":100000}}}}"#);
        self.call(Method::POST, "/v1/tenants/default/endpoints", &body).await.map(|_| ())
    }

    /// Asks it for something; the body of its answer.
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
        match status.is_success() {
            true => Ok(body),
            false => bail!("{method} {path} was answered {status}: {body}"),
        }
    }

    /// How much processor time it has used.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.process.id().and_then(|id| std::fs::read_to_string(format!("/proc/{id}/stat")).ok());
        let fields = stat.as_deref().and_then(|stat| stat.rsplit(')').next());
        let ticks: f64 = fields
            .map(|fields| fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum())
            .unwrap_or(0.0);
        // The kernel counts user time in hundredths of a second.
        ticks / 100.0
    }

    /// Ends it and removes its folder.
    pub async fn stop(mut self) {
        let _ = self.process.kill().await;
        let _ = self.folder.close();
    }
}
