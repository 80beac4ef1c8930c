//! Makes calls about the resources of one tenant.

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::client::Client;
use crate::error::Error;
use crate::event::{BatchItem, NewEvent, Receipt};
use crate::resource::{Delivery, Endpoint, Event, ListQuery, Page};

/// A client for the events, deliveries and endpoints of one tenant.
#[derive(Debug, Clone)]
pub struct TenantClient {
    client: Client,
    tenant: String,
}

/// What became of the events of a batch.
#[derive(serde::Deserialize)]
struct BatchAnswer {
    data: Vec<BatchItem>,
}

impl Client {
    /// Returns a client for the resources of a tenant.
    pub fn tenant(&self, tenant: impl Into<String>) -> TenantClient {
        TenantClient { client: self.clone(), tenant: tenant.into() }
    }
}

impl TenantClient {
    /// Hands in an event. When it returns, the event and its deliveries are on disk.
    pub async fn send(&self, event: &NewEvent) -> Result<Receipt, Error> {
        self.client.call_repeated(Method::POST, &self.url(&["events"])?, Some(json(event)?)).await
    }

    /// Hands in up to 1,000 events in one commit, in their order: all of them, or none.
    pub async fn send_batch(&self, events: &[NewEvent]) -> Result<Vec<BatchItem>, Error> {
        let url = self.url(&["events", "batch"])?;
        Ok(self.client.call_repeated::<BatchAnswer>(Method::POST, &url, Some(json(events)?)).await?.data)
    }

    /// Hands in up to 1,000 events; those that can be accepted are, and each has its
    /// status.
    pub async fn send_batch_partial(&self, events: &[NewEvent]) -> Result<Vec<BatchItem>, Error> {
        let mut url = self.url(&["events", "batch"])?;
        url.query_pairs_mut().append_pair("partial", "true");
        Ok(self.client.call_repeated::<BatchAnswer>(Method::POST, &url, Some(json(events)?)).await?.data)
    }

    /// Returns an event.
    pub async fn event(&self, id: &str) -> Result<Event, Error> {
        self.get(&["events", id]).await
    }

    /// Lists events, newest first.
    pub async fn events(&self, query: &ListQuery) -> Result<Page<Event>, Error> {
        self.list(&["events"], query).await
    }

    /// Lists the deliveries of an event.
    pub async fn deliveries_of(&self, event: &str) -> Result<Page<Delivery>, Error> {
        self.get(&["events", event, "deliveries"]).await
    }

    /// Returns a delivery.
    pub async fn delivery(&self, id: &str) -> Result<Delivery, Error> {
        self.get(&["deliveries", id]).await
    }

    /// Lists deliveries, newest first.
    pub async fn deliveries(&self, query: &ListQuery) -> Result<Page<Delivery>, Error> {
        self.list(&["deliveries"], query).await
    }

    /// Lists dead letters, newest first.
    pub async fn dead_letters(&self, query: &ListQuery) -> Result<Page<Delivery>, Error> {
        self.list(&["dead-letters"], query).await
    }

    /// Puts a finished delivery back to waiting. It is tried once: a repeat after a lost
    /// answer could replay it twice.
    pub async fn replay(&self, delivery: &str) -> Result<Delivery, Error> {
        self.client.call_typed(Method::POST, &self.url(&["deliveries", delivery, "replay"])?, None).await
    }

    /// Makes the next attempt of a waiting delivery now. It is tried once.
    pub async fn retry(&self, delivery: &str) -> Result<Delivery, Error> {
        self.client.call_typed(Method::POST, &self.url(&["deliveries", delivery, "retry"])?, None).await
    }

    /// Creates an endpoint with these settings, of which `url` is required. It is tried
    /// once.
    pub async fn create_endpoint(&self, settings: &(impl Serialize + ?Sized)) -> Result<Endpoint, Error> {
        self.client.call_typed(Method::POST, &self.url(&["endpoints"])?, Some(json(settings)?)).await
    }

    /// Lists endpoints, newest first.
    pub async fn endpoints(&self, query: &ListQuery) -> Result<Page<Endpoint>, Error> {
        self.list(&["endpoints"], query).await
    }

    /// Returns an answer of a path below the tenant, read as what the caller wants.
    pub async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Error> {
        self.list(path, &ListQuery::new()).await
    }

    async fn list<T: DeserializeOwned>(&self, path: &[&str], query: &ListQuery) -> Result<T, Error> {
        let mut url = self.url(path)?;
        for (name, value) in query.pairs() {
            url.query_pairs_mut().append_pair(name, value);
        }
        self.client.call_repeated(Method::GET, &url, None).await
    }

    /// Returns the URL of a path below the tenant.
    pub fn url(&self, path: &[&str]) -> Result<Url, Error> {
        self.client.url(&[&["tenants", self.tenant.as_str()], path].concat())
    }
}

fn json(value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value)
        .map_err(|problem| Error::InvalidArgument(format!("the request cannot be written as JSON: {problem}")))
}
