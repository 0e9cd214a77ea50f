//! The run specification, shared newtypes and the limits of every queue and map.
#![forbid(unsafe_code)]

pub mod truncation;
