//! Random numbers: keys of generations and identities of runs.

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes from the system's generator.
///
/// # Panics
/// If the system has no random numbers: nothing may go on with guessable secrets.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system gives random numbers");
    bytes
}

/// A short name that nothing else has: `N` random bytes as hexadecimal digits.
pub fn random_name<const N: usize>() -> String {
    random_bytes::<N>().iter().map(|byte| format!("{byte:02x}")).collect()
}
