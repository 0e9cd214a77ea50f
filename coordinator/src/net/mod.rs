//! The coordinator's connections: sessions with agents, and the services for people and programs.

pub use connector::Connector;
pub use discover::{Cluster, Discover};
pub use server::{Guard, Metrics, ServeError, Server, serve};

mod access;
mod connector;
mod discover;
mod server;
mod service;
mod session;
