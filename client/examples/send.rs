//! Hands in an event, and waits until its deliveries are finished:
//!
//!     POSTHASTE_TOKEN=… cargo run -p posthaste-client --example send -- http://127.0.0.1:8400 default order-7
//!
//! Run it twice: the second time the event is known already.

use std::error::Error;
use std::time::Duration;

use posthaste_client::{Client, NewEvent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, tenant, order] = &args[..] else {
        return Err("give the gateway's URL, a tenant and the name of an order".into());
    };
    let token = std::env::var("POSTHASTE_TOKEN").map_err(|_| "POSTHASTE_TOKEN is not set")?;
    let tenant = Client::new(server, &token)?.tenant(tenant);

    // The id comes from what happened, so that a repeat after a crash has no effect.
    let event = NewEvent::new("order.paid", &serde_json::json!({"order": order, "cents": 1250}))?
        .id(format!("{order}-paid"))
        .key(order);
    let receipt = tenant.send(&event).await?;
    let known = if receipt.duplicate { ", and was known already" } else { "" };
    println!("{} goes to {} endpoints{known}", receipt.id, receipt.deliveries);

    loop {
        let page = tenant.deliveries_of(&receipt.id).await?;
        let waiting = page.data.iter().filter(|delivery| delivery.state == "waiting").count();
        if waiting == 0 {
            for delivery in page.data {
                println!("{} is {} after {} attempts", delivery.id, delivery.state, delivery.attempts);
            }
            return Ok(());
        }
        println!("{waiting} deliveries wait");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
