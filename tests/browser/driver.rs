//! A small WebDriver client, and the browser it drives.
//!
//! It is our own: the published clients bring a crate under a licence that asks for
//! more than its text, and second versions of several others, for a dozen calls of
//! JSON over HTTP.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(90);

/// A running chromedriver; it ends with the test.
pub struct Driver {
    address: SocketAddr,
    _process: Child,
}

impl Driver {
    /// Starts chromedriver on a free port.
    pub async fn start() -> Self {
        let mut process = Command::new("chromedriver")
            .args(["--port=0", "--allowed-ips=127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver is missing; ./check installs Debian's packages chromium and chromium-driver");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let port = loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("chromedriver starts in time");
            let line = line.expect("readable output").expect("chromedriver did not end");
            if let Some(port) = line.split("started successfully on port ").nth(1) {
                break port.trim_end_matches('.').parse::<u16>().expect("a port");
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { address: SocketAddr::from(([127, 0, 0, 1], port)), _process: process }
    }

    /// Opens a browser with a new profile. `more` are further flags of Chromium.
    pub async fn browser(&self, more: &[String]) -> Browser {
        self.browser_with(more, json!({})).await
    }

    /// Opens a browser with further flags and these preferences.
    pub async fn browser_with(&self, more: &[String], prefs: Value) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut args: Vec<String> = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--force-color-profile=srgb",
            "--hide-scrollbars",
        ]
        .map(str::to_owned)
        .to_vec();
        args.push(format!("--user-data-dir={}", profile.path().display()));
        args.extend_from_slice(more);
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "acceptInsecureCerts": true,
            "unhandledPromptBehavior": "ignore",
            "goog:chromeOptions": {"args": args, "binary": "/usr/bin/chromium", "prefs": prefs},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let answer = self.call("POST", "/session", Some(&capabilities)).await;
        let session = answer["sessionId"].as_str().unwrap_or_else(|| panic!("no browser: {answer}")).to_owned();
        Browser { address: self.address, session, _profile: profile }
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        call(self.address, method, path, body).await.unwrap_or_else(|problem| panic!("{method} {path}: {problem}"))
    }
}

/// A browser with one tab.
pub struct Browser {
    address: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens an address and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.post("url", &json!({"url": url})).await;
    }

    /// Returns the address of the page.
    pub async fn address(&self) -> String {
        self.get("url").await.as_str().unwrap().to_owned()
    }

    /// Runs a function's body in the page; returns what it returns.
    pub async fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Runs a function's body that calls back with its result.
    pub async fn run_async(&self, script: &str, args: &[Value]) -> Value {
        self.post("execute/async", &json!({"script": script, "args": args})).await
    }

    /// Calls Chromium's own protocol.
    pub async fn cdp(&self, command: &str, params: Value) -> Value {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": params})).await
    }

    /// Returns the text of an element.
    pub async fn text(&self, selector: &str) -> String {
        let element = self.element(selector).await;
        self.get(&format!("element/{element}/text")).await.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks an element.
    pub async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.post(&format!("element/{element}/click"), &json!({})).await;
    }

    /// Goes into a frame: scripts, clicks and texts are those of its page.
    pub async fn enter_frame(&self, selector: &str) {
        let found = self.post("element", &json!({"using": "css selector", "value": selector})).await;
        self.post("frame", &json!({"id": found})).await;
    }

    /// Goes back to the page that holds the frame.
    pub async fn leave_frame(&self) {
        self.post("frame", &json!({"id": null})).await;
    }

    /// Types into an element.
    pub async fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        self.post(&format!("element/{element}/value"), &json!({"text": text})).await;
    }

    /// Presses keys, in the element that has the focus.
    pub async fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [
                    json!({"type": "keyDown", "value": key.to_string()}),
                    json!({"type": "keyUp", "value": key.to_string()}),
                ]
            })
            .collect();
        self.post("actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})).await;
    }

    /// Waits until a script returns true.
    pub async fn wait_until(&self, what: &str, script: &str) {
        let began = tokio::time::Instant::now();
        while self.run(script).await != json!(true) {
            assert!(
                began.elapsed() < PATIENCE,
                "waited in vain until {what}: {}",
                self.run("return document.body.innerText").await
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the cookies of the page's site.
    pub async fn cookies(&self) -> Vec<Value> {
        self.get("cookie").await.as_array().unwrap().clone()
    }

    /// Whether a dialog is open, which no page of ours has.
    pub async fn has_dialog(&self) -> bool {
        call(self.address, "GET", &self.path("alert/text"), None).await.is_ok()
    }

    /// Returns what was logged since the last call: `browser` or `performance`.
    pub async fn log(&self, kind: &str) -> Vec<Value> {
        self.post("se/log", &json!({"type": kind})).await.as_array().unwrap().clone()
    }

    /// Returns a picture of what is seen, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        decoded(&self.get("screenshot").await)
    }

    /// Returns a picture of the whole page, with nothing in the focus, as PNG.
    pub async fn whole_picture(&self) -> Vec<u8> {
        let page = "document.activeElement?.blur(); scrollTo(0, 0); const page = document.documentElement;
            return {x: 0, y: 0, width: page.clientWidth, height: page.scrollHeight, scale: 1};";
        let clip = self.run(page).await;
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        decoded(&self.cdp("Page.captureScreenshot", params).await["data"])
    }

    async fn element(&self, selector: &str) -> String {
        let found = self.post("element", &json!({"using": "css selector", "value": selector})).await;
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.unwrap_or_else(|| panic!("{selector} is not on the page")).to_owned()
    }

    fn path(&self, rest: &str) -> String {
        format!("/session/{}/{rest}", self.session)
    }

    async fn get(&self, rest: &str) -> Value {
        call(self.address, "GET", &self.path(rest), None).await.unwrap_or_else(|problem| panic!("{rest}: {problem}"))
    }

    async fn post(&self, rest: &str, body: &Value) -> Value {
        call(self.address, "POST", &self.path(rest), Some(body))
            .await
            .unwrap_or_else(|problem| panic!("{rest}: {problem}"))
    }

    /// Closes the browser.
    pub async fn close(self) {
        let _ = call(self.address, "DELETE", &format!("/session/{}", self.session), None).await;
    }
}

fn decoded(picture: &Value) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(picture.as_str().unwrap()).unwrap()
}

/// Makes one call; an error is what the driver says.
async fn call(address: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(|problem| problem.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|problem| problem.to_string())?;
        tokio::spawn(connection);
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(body))
            .expect("a request");
        let response = sender.send_request(request).await.map_err(|problem| problem.to_string())?;
        let is_fine = response.status().is_success();
        let body = response.into_body().collect().await.map_err(|problem| problem.to_string())?.to_bytes();
        let answer: Value = serde_json::from_slice(&body).map_err(|problem| problem.to_string())?;
        if is_fine { Ok(answer["value"].clone()) } else { Err(answer["value"]["message"].to_string()) }
    };
    tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| "no answer in a minute".to_owned())?
}
