//! An open stream of server-sent events.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Gateway, PATIENCE};

/// An open stream, and what came until now.
pub struct EventStream {
    connection: TcpStream,
    /// All that was read, with the head of the answer.
    pub text: String,
}

impl EventStream {
    /// Opens a stream with one more header.
    pub async fn open(gateway: &Gateway, path: &str, header: (&str, &str)) -> Self {
        let mut connection = TcpStream::connect(gateway.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{}: {}\r\n\r\n", gateway.address, header.0, header.1);
        connection.write_all(request.as_bytes()).await.unwrap();
        Self { connection, text: String::new() }
    }

    /// Opens a stream of the API with a token.
    pub async fn of_api(gateway: &Gateway, path: &str, token: &str) -> Self {
        Self::open(gateway, path, ("authorization", &format!("Bearer {token}"))).await
    }

    /// Reads until it has seen this text.
    pub async fn until(&mut self, text: &str) {
        let reading = async {
            while !self.text.contains(text) {
                let mut part = [0; 4_096];
                let count = self.connection.read(&mut part).await.unwrap();
                assert!(count > 0, "the stream ended before {text:?}: {}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&part[..count]));
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("no {text:?}: {}", self.text));
    }

    /// Reads to its end.
    pub async fn end(&mut self) {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, self.connection.read_to_end(&mut rest)).await.expect("it ends").ok();
        self.text.push_str(&String::from_utf8_lossy(&rest));
    }
}
