//! What people look at during and after a run: event files for TensorBoard, and one HTML page.
//!
//! Both are made from what `metrics.jsonl` and `results.json` say; they hold nothing of their own.

mod chart;
mod page;
mod tables;
mod tensorboard;

pub use page::{PAGE, PageError, write_page};
pub use tensorboard::EventFiles;
