//! Which Service lists the agents, and which port of it.

/// Name of the agents' port, unless another one is given.
pub const DEFAULT_PORT: &str = "grpc";

/// A headless Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Name of the port of agents.
    pub port: String,
}

/// Why a text names no Service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// A part is no DNS label.
    #[error("{part:?} in {text:?} is no name of a {what}: 1 to 63 of a-z, 0-9 and -, not at an end")]
    Label {
        /// The whole text.
        text: String,
        /// The part.
        part: String,
        /// What it should name.
        what: &'static str,
    },
    /// Nobody says which namespace.
    #[error("{0:?} names no namespace, and this process runs in none")]
    NoNamespace(String),
}

impl Service {
    /// Reads `SERVICE[.NAMESPACE][:PORT]`; `here` is the namespace of this process.
    ///
    /// # Errors
    /// Parts that are no names, or no namespace.
    pub fn parse(text: &str, here: Option<&str>) -> Result<Self, ServiceError> {
        let (names, port) = text.split_once(':').unwrap_or((text, DEFAULT_PORT));
        let (name, namespace) = match names.split_once('.') {
            Some((name, namespace)) => (name, namespace),
            None => (names, here.ok_or_else(|| ServiceError::NoNamespace(text.into()))?),
        };
        for (part, what) in [(name, "Service"), (namespace, "namespace"), (port, "port")] {
            if !is_label(part) {
                return Err(ServiceError::Label { text: text.into(), part: part.into(), what });
            }
        }
        Ok(Self { name: name.into(), namespace: namespace.into(), port: port.into() })
    }

    /// The name of its SRV records, without the cluster's domain, which only the search list knows.
    pub fn srv_name(&self) -> String {
        format!("_{}._tcp.{}.{}.svc", self.port, self.name, self.namespace)
    }
}

fn is_label(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_and_mistakes_are_named() {
        let service = Service::parse("trainers.ml:rpc", None).unwrap();
        assert_eq!(service.srv_name(), "_rpc._tcp.trainers.ml.svc");
        let here = Service::parse("trainers", Some("here")).unwrap();
        assert_eq!((here.namespace.as_str(), here.port.as_str()), ("here", DEFAULT_PORT));
        assert!(matches!(Service::parse("trainers", None), Err(ServiceError::NoNamespace(_))));
        for wrong in ["", "Trainers.ml", "a.b.c", "a.b:", "-a.b", &"x".repeat(64)] {
            assert!(matches!(Service::parse(wrong, Some("n")), Err(ServiceError::Label { .. })), "{wrong}");
        }
    }
}
