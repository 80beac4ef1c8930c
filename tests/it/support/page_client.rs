//! A browser without script: a cookie, pages, and forms with their token.

use http::StatusCode;
use url::form_urlencoded::Serializer;

use super::{Answer, Client, Gateway};

/// A person who is signed in to the dashboard or the portal.
pub struct PageClient {
    client: Client,
    cookie: String,
    origin: String,
    /// Page that has a form with the token.
    home: &'static str,
}

impl PageClient {
    /// Signs in to the operator's dashboard with the admin token.
    pub async fn operator(gateway: &Gateway) -> Self {
        Self::sign_in(gateway, "/sign-in", gateway.token(), "/").await
    }

    /// Signs in to the operator's dashboard with a token of the gateway.
    pub async fn operator_with(gateway: &Gateway, token: &str) -> Self {
        Self::sign_in(gateway, "/sign-in", token, "/tenants").await
    }

    /// Signs in with the admin token at another path of the same gateway.
    pub async fn operator_below(gateway: &Gateway, path: &str, home: &'static str) -> Self {
        Self::sign_in(gateway, path, gateway.token(), home).await
    }

    /// Signs in to the portal with a tenant's token.
    pub async fn portal(gateway: &Gateway, token: &str) -> Self {
        Self::sign_in(gateway, "/portal/sign-in", token, "/portal/endpoints").await
    }

    /// Signs in to the portal with the code of a link.
    pub async fn portal_by_code(gateway: &Gateway, code: &str) -> Self {
        Self::enter(gateway, "/portal/enter", ("code", code), "/portal/endpoints").await
    }

    async fn sign_in(gateway: &Gateway, path: &str, token: &str, home: &'static str) -> Self {
        Self::enter(gateway, path, ("token", token), home).await
    }

    async fn enter(gateway: &Gateway, path: &str, field: (&str, &str), home: &'static str) -> Self {
        // Pages never look at the header that the client of the API sends.
        let client = Client::new(gateway.address, "none");
        let origin = format!("http://{}", gateway.address);
        let page = Self { client, cookie: String::new(), origin, home };
        let answer = page.send("POST", path, &[field]).await;
        assert_eq!(answer.status, 303, "{}", String::from_utf8_lossy(&answer.body));
        let cookie = answer.headers["set-cookie"].to_str().expect("a cookie");
        let cookie = cookie.split(';').next().expect("a name and a value").to_owned();
        Self { cookie, ..page }
    }

    async fn send(&self, method: &str, path: &str, form: &[(&str, &str)]) -> Answer {
        self.send_with(method, path, form, &[]).await
    }

    async fn send_with(&self, method: &str, path: &str, form: &[(&str, &str)], more: &[(&str, &str)]) -> Answer {
        let own = [
            ("cookie", self.cookie.as_str()),
            ("origin", self.origin.as_str()),
            ("sec-fetch-site", "same-origin"),
            ("accept", "text/html"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let headers = [&own, more].concat();
        let body = Serializer::new(String::new()).extend_pairs(form).finish();
        self.client.send(method, path, &headers, body).await.expect("the page answers")
    }

    /// Opens a page, and returns the whole answer.
    pub async fn open(&self, path: &str) -> Answer {
        self.send("GET", path, &[]).await
    }

    /// Opens a page with further headers.
    pub async fn open_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send_with("GET", path, &[], headers).await
    }

    /// Opens a page.
    pub async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.open(path).await;
        let status = StatusCode::from_u16(answer.status).expect("a status");
        (status, String::from_utf8(answer.body.to_vec()).expect("pages are text"))
    }

    /// Sends a form with the token of this sign-in; returns also where it leads.
    pub async fn post(&self, path: &str, form: &[(&str, &str)]) -> (StatusCode, Option<String>, String) {
        let answer = self.submit(path, form).await;
        let location = answer.headers.get("location").and_then(|to| to.to_str().ok()).map(str::to_owned);
        let status = StatusCode::from_u16(answer.status).expect("a status");
        (status, location, String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Sends a form with the token of this sign-in; returns the whole answer.
    pub async fn submit(&self, path: &str, form: &[(&str, &str)]) -> Answer {
        let (_, home) = self.get(self.home).await;
        let token = home.split("name=\"form_token\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        let token = token.unwrap_or_else(|| panic!("no form on {}: {home}", self.home)).to_owned();
        let form = [form, &[("form_token", token.as_str())]].concat();
        self.send("POST", path, &form).await
    }

    /// Returns the cookie of this sign-in.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }
}
