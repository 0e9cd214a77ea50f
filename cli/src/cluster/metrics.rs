//! A small HTTP server for one page: `/metrics`, for Prometheus.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Deadline of a whole request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Requests at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 16;

/// Opens the port, if one is wanted.
///
/// # Errors
/// An address that can't be listened on.
pub async fn listen(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("can't listen on {address} for metrics"))?;
    tracing::info!("metrics are at http://{}/metrics", listener.local_addr()?);
    Ok(Some(listener))
}

/// Serves the page for as long as it is polled. `text` gives its present content.
pub async fn serve<F, T>(listener: TcpListener, text: F)
where
    F: Fn() -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Option<String>> + Send,
{
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: they come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let text = text.clone();
        tokio::spawn(async move {
            // Who asks too slowly, or goes away, gets nothing.
            let _ = tokio::time::timeout(TIMEOUT, answer(stream, text)).await;
            drop(permit);
        });
    }
}

async fn answer<F, T>(mut stream: TcpStream, text: F) -> std::io::Result<()>
where
    F: Fn() -> T,
    T: Future<Output = Option<String>>,
{
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut chunk).await?;
        if count == 0 || head.len() + count > MAX_HEAD_BYTES {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..count]);
    }
    let line = String::from_utf8_lossy(&head);
    let (status, body) = match line.split_whitespace().take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics"] => match text().await {
            Some(text) => ("200 OK", text),
            None => ("503 Service Unavailable", "busy, or ending\n".to_owned()),
        },
        ["GET", _] => ("404 Not Found", "only /metrics is here\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET works here\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[test]
    fn the_page_is_served_and_nothing_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = listen(Some(([127, 0, 0, 1], 0).into())).await.expect("a port").expect("wanted");
            let address = listener.local_addr().expect("an address");
            tokio::spawn(serve(listener, || async { Some("muster_nodes 1\n".to_owned()) }));
            let page = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
            assert!(
                page.starts_with("HTTP/1.1 200 OK") && page.ends_with("\r\n\r\nmuster_nodes 1\n"),
                "{page}"
            );
            assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
            assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
            assert_eq!(ask(address, &"x".repeat(MAX_HEAD_BYTES + 1)).await, "");
        });
    }
}
