//! Log lines of a rank: cut to a length, limited in rate, shipped in batches.

use std::time::Instant;

use muster_proto::limits::{
    LOG_BATCH_DELAY, LOG_BATCH_LINES, LOG_LINES_BURST, LOG_LINES_PER_SECOND, MAX_LOG_LINE_BYTES,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::mpsc;

/// Reads lines until the end of the stream. Text beyond the longest line is dropped, not kept.
pub(super) async fn read_lines(from: impl AsyncRead + Unpin, to: mpsc::Sender<String>) {
    let mut from = BufReader::new(from);
    let mut line: Vec<u8> = Vec::new();
    while let Ok(chunk) = from.fill_buf().await {
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let text = &chunk[..end.unwrap_or(chunk.len())];
        let room = MAX_LOG_LINE_BYTES - line.len();
        line.extend_from_slice(&text[..text.len().min(room)]);
        let used = end.map_or(chunk.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() && !deliver(&mut line, &to).await {
            return;
        }
    }
    if !line.is_empty() {
        deliver(&mut line, &to).await;
    }
}

async fn deliver(line: &mut Vec<u8>, to: &mpsc::Sender<String>) -> bool {
    let text = String::from_utf8_lossy(line).trim_end_matches('\r').to_owned();
    line.clear();
    to.send(text).await.is_ok()
}

/// A bucket of tokens, one per line.
#[derive(Debug)]
struct Rate {
    tokens: u64,
    filled: Instant,
    dropped: u64,
}

impl Rate {
    fn admit(&mut self, now: Instant) -> bool {
        let new = (now - self.filled).as_millis() as u64 * LOG_LINES_PER_SECOND / 1000;
        if new > 0 {
            self.tokens = (self.tokens + new).min(LOG_LINES_BURST);
            self.filled = now;
        }
        let admitted = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        self.dropped += u64::from(!admitted);
        admitted
    }
}

/// Gathers lines into batches; `ship` gets each of them.
pub(super) async fn batch<F: Future<Output = bool>>(
    mut lines: mpsc::Receiver<String>,
    mut ship: impl FnMut(Vec<String>) -> F,
) {
    let mut rate = Rate { tokens: LOG_LINES_BURST, filled: Instant::now(), dropped: 0 };
    while let Some(first) = lines.recv().await {
        let mut batch = Vec::new();
        let mut next = Some(first);
        let until = tokio::time::Instant::now() + LOG_BATCH_DELAY;
        while let Some(line) = next.take() {
            if rate.admit(Instant::now()) {
                if rate.dropped > 0 {
                    batch.push(format!("({} lines were dropped: too many at once)", rate.dropped));
                    rate.dropped = 0;
                }
                batch.push(line);
            }
            if batch.len() >= LOG_BATCH_LINES {
                break;
            }
            next = tokio::time::timeout_at(until, lines.recv()).await.ok().flatten();
        }
        if !batch.is_empty() && !ship(batch).await {
            return;
        }
    }
    if rate.dropped > 0 {
        ship(vec![format!("({} lines were dropped: too many at once)", rate.dropped)]).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn gathered(text: &[u8]) -> Vec<String> {
        let (to, lines) = mpsc::channel(16);
        let mut all = Vec::new();
        let (shipped, mut batches) = mpsc::channel(1 << 16);
        let ship = |batch| {
            let shipped = shipped.clone();
            async move { shipped.send(batch).await.is_ok() }
        };
        tokio::join!(read_lines(text, to), batch(lines, ship));
        drop(shipped);
        while let Some(batch) = batches.recv().await {
            all.extend::<Vec<String>>(batch);
        }
        all
    }

    #[tokio::test]
    async fn lines_are_cut_and_kept_in_order() {
        let long = "x".repeat(MAX_LOG_LINE_BYTES * 3);
        let text = format!("first\r\n{long}\n\nno end \u{fffd}");
        let lines = gathered(text.as_bytes()).await;
        assert_eq!(lines, ["first", &long[..MAX_LOG_LINE_BYTES], "", "no end \u{fffd}"]);
    }

    #[tokio::test]
    async fn a_flood_is_limited_and_counted() {
        let text = "flood\n".repeat(100_000);
        let lines = gathered(text.as_bytes()).await;
        assert!(lines.len() < 50_000, "{}", lines.len());
        let dropped: u64 =
            lines.iter().filter_map(|l| l.strip_prefix('(')?.split(' ').next()?.parse::<u64>().ok()).sum();
        let kept = lines.iter().filter(|line| *line == "flood").count() as u64;
        assert_eq!(kept + dropped, 100_000);
    }
}
