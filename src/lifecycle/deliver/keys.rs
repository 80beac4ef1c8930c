//! Makes, writes and reads the keys that deliveries are signed with.
//!
//! A shared secret is `whsec_` and its bytes in base64. A private key is
//! `whsk_` and 64 bytes, the seed and the public key it belongs to; the public
//! key alone is `whpk_` and 32 bytes. Error texts never contain the key.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Prefix of every shared secret.
pub const SECRET_PREFIX: &str = "whsec_";
/// Prefix of every private key.
pub const KEY_PREFIX: &str = "whsk_";
/// Prefix of every public key.
pub const PUBLIC_PREFIX: &str = "whpk_";

const SEED_BYTES: usize = 32;

/// Error text for a shared secret that cannot be used.
pub const BAD_SECRET: &str =
    "secret is not whsec_ and 24 to 64 bytes in base64; bring such a one, or leave it out and one is made";
/// Error text for a private key that cannot be used.
pub const BAD_KEY: &str = "private_key is not whsk_ and an Ed25519 seed with its public key, 64 bytes, in base64; bring such a one, or leave \
     it out and one is made";

/// Returns the key bytes of a shared secret, or nothing if it is invalid.
pub fn secret_key(secret: &str) -> Option<Vec<u8>> {
    let encoded = secret.strip_prefix(SECRET_PREFIX)?;
    STANDARD.decode(encoded).ok().filter(|key| (24..=64).contains(&key.len()))
}

/// Makes a shared secret of 24 random bytes: 32 characters, no padding.
pub fn new_secret(random: [u8; 24]) -> String {
    format!("{SECRET_PREFIX}{}", STANDARD.encode(random))
}

/// Makes a private key from 32 random bytes.
pub fn new_key(random: [u8; SEED_BYTES]) -> String {
    let pair = Ed25519KeyPair::from_seed_unchecked(&random).expect("any 32 bytes are a seed");
    format!("{KEY_PREFIX}{}", STANDARD.encode([random.as_slice(), pair.public_key().as_ref()].concat()))
}

/// Returns the key pair of a private key, or nothing if it is invalid.
pub fn key_pair(key: &str) -> Option<Ed25519KeyPair> {
    let bytes = STANDARD.decode(key.strip_prefix(KEY_PREFIX)?).ok()?;
    let (seed, public) = bytes.split_at_checked(SEED_BYTES)?;
    Ed25519KeyPair::from_seed_and_public_key(seed, public).ok()
}

/// Returns the public key that belongs to a private key.
pub fn public_key(key: &str) -> Option<String> {
    key_pair(key).map(|pair| public_key_text(pair.public_key().as_ref()))
}

/// Returns the bytes of the public key that a private key carries, without computing
/// them.
pub fn public_key_bytes(key: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(key.strip_prefix(KEY_PREFIX)?).ok()?;
    bytes.split_at_checked(SEED_BYTES).map(|(_, public)| public.to_vec()).filter(|public| public.len() == SEED_BYTES)
}

/// Writes a public key as text.
pub fn public_key_text(bytes: &[u8]) -> String {
    format!("{PUBLIC_PREFIX}{}", STANDARD.encode(bytes))
}

/// Returns the verifier of a public key, or nothing if it is invalid.
pub fn public_half(text: &str) -> Option<UnparsedPublicKey<Vec<u8>>> {
    let bytes = STANDARD.decode(text.strip_prefix(PUBLIC_PREFIX)?).ok()?;
    (bytes.len() == SEED_BYTES).then(|| UnparsedPublicKey::new(&ED25519, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_a_prefix_and_24_to_64_bytes() {
        assert_eq!(secret_key(&new_secret([7; 24])), Some(vec![7; 24]));
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![1; bytes]));
        assert!(secret_key(&of(64)).is_some() && secret_key(&of(32)).is_some());
        for bad in [&of(23), &of(65), "whsec_", "whsec_%", "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &of(24)[6..], ""] {
            assert_eq!(secret_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_private_key_carries_the_public_key_it_belongs_to() {
        let key = new_key([7; 32]);
        let public = public_key(&key).unwrap();
        assert_eq!(public_key_text(&public_key_bytes(&key).unwrap()), public);
        assert!(public.starts_with("whpk_") && public_half(&public).is_some());
        assert!(key.len() == 5 + 88 && key_pair(&key).is_some());
        // The seed does not belong to the public key beside it.
        let mut bytes = STANDARD.decode(&key[5..]).unwrap();
        bytes[40] ^= 1;
        assert!(key_pair(&format!("whsk_{}", STANDARD.encode(&bytes))).is_none());
        for bad in ["", "whsk_", "whsk_AAAA", &key[5..], &public] {
            assert!(key_pair(bad).is_none() && public_key(bad).is_none(), "{bad}");
        }
        assert!(public_half(&key).is_none() && public_half("whpk_AAAA").is_none());
    }
}
