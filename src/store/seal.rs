//! Seals what must not be read by whoever reads the store.
//!
//! One master key per installation, kept in a file. From it come the key that
//! seals, a short id of it that stands before whatever it sealed, and a text
//! that tells whether a key fits without telling the key. While a key is being
//! replaced the file holds both, the new one first; which of them seals is for
//! the store to say, by the text it has kept.
//!
//! Invariant: a sealed text opens only under its own key and for what it was
//! sealed about, so a row copied to another endpoint is worth nothing there.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::durable_file::{folder_of, put_if_absent, put_in_place, write_unnamed};
use crate::model::id::EndpointId;

/// The master key's file in a data directory.
pub const MASTER_KEY_FILE: &str = "master-key";
/// The note that tells which key a store is sealed under.
pub const CHECK_NOTE: &str = "master_key_check";

/// The note that keeps what links are signed with, sealed.
pub const LINK_KEY_NOTE: &str = "link_key";

const ABOUT_LINKS: &[u8] = b"link key";
const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 4;

/// The master key, ready to use.
#[derive(Clone)]
pub struct Seal {
    /// All of them open.
    keys: Arc<[MasterKey]>,
    /// The one that seals.
    first: usize,
    file: Option<PathBuf>,
}

struct MasterKey {
    key: RandomizedNonceKey,
    id: [u8; ID_BYTES],
    check: String,
}

/// What is there was sealed under another key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the master key{} does not fit this database, whose secrets are sealed under another; put the master-key file in its \
     place with which it was first used, or name that with --master-key-file", .file.as_ref().map(|file| format!(" in {}", file.display())).unwrap_or_default()
)]
pub struct WrongKey {
    /// Where the wrong key is.
    pub file: Option<PathBuf>,
}

/// There is no master key, and what is there was sealed under one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the master key is missing: there is no file {}, and the secrets of this database are sealed under a key; restore \
     the master-key file with which it was first used (on a further node, copy that of the first), or name it with \
     --master-key-file", .file.display()
)]
pub struct MissingKey {
    /// Where it was looked for.
    pub file: PathBuf,
}

/// What was sealed cannot be opened: it is damaged, or was put where it does
/// not belong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} cannot be opened with the master key: it is damaged, or was sealed for something else")]
pub struct SealError(pub String);

impl MasterKey {
    fn new(master: [u8; KEY_BYTES]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, &master);
        // One key, one purpose: what is made public tells nothing of what seals.
        let derived = |purpose: &str| hmac::sign(&master, purpose.as_bytes());
        let key = RandomizedNonceKey::new(&AES_256_GCM, derived("posthaste: seal, 1").as_ref())
            .expect("the hash is as long as a key");
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&derived("posthaste: id, 1").as_ref()[..ID_BYTES]);
        Self { key, id, check: hex::encode(derived("posthaste: check, 1").as_ref()) }
    }

    fn fits(&self, check: &str) -> bool {
        constant_time::verify_slices_are_equal(self.check.as_bytes(), check.trim().as_bytes()).is_ok()
    }

    fn open(&self, about: &[u8], sealed: &[u8]) -> Option<String> {
        let rest = sealed.strip_prefix(&self.id)?;
        let (nonce, body) = rest.split_at_checked(NONCE_LEN)?;
        let mut body = body.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.key.open_in_place(nonce, Aad::from(about), &mut body).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl Seal {
    /// A seal under this master key.
    pub fn from_key(master: [u8; KEY_BYTES]) -> Self {
        Self::from_keys(&[master])
    }

    /// A seal under the first of these, that opens what any of them sealed.
    fn from_keys(masters: &[[u8; KEY_BYTES]]) -> Self {
        Self { keys: masters.iter().map(|master| MasterKey::new(*master)).collect(), first: 0, file: None }
    }

    /// Reads the key from a file, or makes one and writes it there. Tells
    /// whether it was made now. Of several that do so at once, one makes it
    /// and all get the same.
    pub fn load_or_create(path: &Path) -> anyhow::Result<(Self, bool)> {
        match path.try_exists() {
            Ok(false) => {
                let is_made =
                    create(path).with_context(|| format!("cannot write a master key to {}", path.display()))?;
                Ok((Self::read(path)?, is_made))
            }
            Ok(true) | Err(_) => Ok((Self::read(path)?, false)),
        }
    }

    /// Reads the key from a file: 64 hexadecimal digits; the old one in a
    /// second line, while it is being replaced.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { file: Some(path.to_owned()), ..Self::from_keys(&read_keys(path)?) })
    }

    /// Begins to replace the key in a file: from now on it holds a new one,
    /// and the old one after it. Where that was begun before, it goes on.
    pub fn begin_rotation(path: &Path) -> anyhow::Result<Self> {
        let keys = read_keys(path)?;
        if let [old] = keys[..] {
            let text = format!("{}\n{}\n", hex::encode(&rand::random::<[u8; KEY_BYTES]>()), hex::encode(&old));
            replace(path, &text).with_context(|| format!("cannot write a master key to {}", path.display()))?;
        }
        Self::read(path)
    }

    /// Takes the old key out of a file: nothing is sealed under it any more.
    pub fn end_rotation(path: &Path) -> anyhow::Result<()> {
        let keys = read_keys(path)?;
        replace(path, &format!("{}\n", hex::encode(&keys[0])))
            .with_context(|| format!("cannot take the old master key out of {}", path.display()))
    }

    fn first(&self) -> &MasterKey {
        &self.keys[self.first]
    }

    /// Seals a text. It opens again only for the same `about`.
    pub fn seal(&self, about: &[u8], text: &str) -> Vec<u8> {
        let mut body = text.as_bytes().to_vec();
        let master = self.first();
        let nonce = master
            .key
            .seal_in_place_append_tag(Aad::from(about), &mut body)
            .expect("a text in memory is not too long to be sealed");
        [master.id.as_slice(), nonce.as_ref(), &body].concat()
    }

    /// Whether an old key is still among these.
    pub fn is_rotating(&self) -> bool {
        self.keys.len() > 1
    }

    /// The text, if a key of these sealed it about the same thing.
    pub fn open(&self, about: &[u8], sealed: &[u8]) -> Option<String> {
        self.keys.iter().find_map(|master| master.open(about, sealed))
    }

    /// The same text, sealed under the key that seals now.
    pub fn reseal(&self, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.open(about, sealed).map(|text| self.seal(about, &text))
    }

    /// A fresh key to sign links with, as it is kept.
    pub fn new_link_key(&self) -> String {
        STANDARD.encode(self.seal(ABOUT_LINKS, &hex::encode(&rand::random::<[u8; KEY_BYTES]>())))
    }

    /// The key that is kept so.
    pub fn link_key(&self, kept: &str) -> Result<[u8; KEY_BYTES], SealError> {
        let text = STANDARD.decode(kept).ok().and_then(|sealed| self.open(ABOUT_LINKS, &sealed));
        text.and_then(|text| from_hex(&text)).ok_or_else(|| SealError("the key of links".into()))
    }

    /// The same key, sealed under the key that seals now.
    pub fn reseal_link_key(&self, kept: &str) -> Result<String, SealError> {
        let sealed = STANDARD.decode(kept).ok().and_then(|sealed| self.reseal(ABOUT_LINKS, &sealed));
        sealed.map(|sealed| STANDARD.encode(sealed)).ok_or_else(|| SealError("the key of links".into()))
    }

    /// A text to keep with what is sealed, from which [`Seal::fits`] tells
    /// whether a key is the one. It does not tell the key.
    pub fn check(&self) -> String {
        self.first().check.clone()
    }

    /// Whether that text was made by a key of these.
    pub fn fits(&self, check: &str) -> bool {
        self.keys.iter().any(|master| master.fits(check))
    }

    /// The same keys, of which the one seals that made this text. Refuses to
    /// work with what another key sealed, naming the file of this one and the
    /// way out.
    pub fn fitted(&self, check: &str) -> Result<Self, WrongKey> {
        match self.keys.iter().position(|master| master.fits(check)) {
            Some(first) => Ok(Self { first, ..self.clone() }),
            None => Err(WrongKey { file: self.file.clone() }),
        }
    }
}

/// What an endpoint's settings are sealed about: its id, and that it is they.
pub fn about_settings(endpoint: EndpointId) -> Vec<u8> {
    [endpoint.0.as_bytes().as_slice(), b" settings"].concat()
}

/// What an endpoint's URLs are sealed about.
pub fn about_urls(endpoint: EndpointId) -> Vec<u8> {
    [endpoint.0.as_bytes().as_slice(), b" urls"].concat()
}

/// What an endpoint's secrets are sealed about: its id.
pub fn about_secret(endpoint: EndpointId) -> Vec<u8> {
    endpoint.0.as_bytes().to_vec()
}

/// Shows nothing.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

fn read_keys(path: &Path) -> anyhow::Result<Vec<[u8; KEY_BYTES]>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the master key from {}", path.display()))?;
    let keys: Option<Vec<_>> = text.trim().lines().map(|line| from_hex(line.trim())).collect();
    match keys.filter(|keys| (1..=2).contains(&keys.len())) {
        Some(keys) => Ok(keys),
        None => bail!(
            "the master key file {} does not hold 64 hexadecimal digits; restore it from where you keep it",
            path.display()
        ),
    }
}

/// Writes a new key where there is none. Tells whether it did: not, when
/// another was quicker.
fn create(path: &Path) -> anyhow::Result<bool> {
    let key: [u8; KEY_BYTES] = rand::random();
    Ok(put_if_absent(written(path, &format!("{}\n", hex::encode(&key)))?, path)?)
}

/// Puts a text in the place of a file, whole or not at all.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(put_in_place(written(path, text)?, path)?)
}

/// A file beside that one with this text, which nobody reads half written.
fn written(path: &Path, text: &str) -> std::io::Result<tempfile::NamedTempFile> {
    write_unnamed(folder_of(path), ".master-key-", text)
}

fn from_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    hex::decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn seal(n: u8) -> Seal {
        Seal::from_key([n; KEY_BYTES])
    }

    #[test]
    fn a_sealed_text_opens_only_under_its_key_and_for_what_it_is_about() {
        let sealed = seal(1).seal(b"endpoint a", "whsec_1");
        assert_eq!(seal(1).open(b"endpoint a", &sealed).as_deref(), Some("whsec_1"));
        assert_eq!(seal(1).open(b"endpoint b", &sealed), None);
        assert_eq!(seal(2).open(b"endpoint a", &sealed), None);
        for n in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[n] ^= 1;
            assert_eq!(seal(1).open(b"endpoint a", &changed), None, "byte {n} was changed");
            assert_eq!(seal(1).open(b"endpoint a", &sealed[..n]), None, "cut off at {n}");
        }
    }

    #[test]
    fn the_same_text_is_sealed_differently_each_time_and_is_not_in_it() {
        let (one, two) = (seal(1).seal(b"a", "whsec_same"), seal(1).seal(b"a", "whsec_same"));
        assert_ne!(one, two);
        assert!(!one.windows(6).any(|part| part == b"whsec_"));
        assert_eq!(one[..ID_BYTES], two[..ID_BYTES], "both begin with the key's id");
    }

    #[test]
    fn a_check_fits_its_own_key_alone_and_neither_it_nor_debug_tells_the_key() {
        let check = seal(1).check();
        assert!(seal(1).fits(&check) && seal(1).fits(&format!("{check}\n")));
        assert!(!seal(2).fits(&check) && !seal(1).fits("") && !seal(1).fits(&check[1..]));
        assert!(!check.contains(&hex::encode(&[1; 4])));
        assert_eq!(format!("{:?}", seal(1)), "Seal");
    }

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_read_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let (first, is_made) = Seal::load_or_create(&path).unwrap();
        assert!(is_made);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() == 65 && text.ends_with('\n'), "{text:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (second, is_made) = Seal::load_or_create(&path).unwrap();
        assert!(!is_made && second.fits(&first.check()));
        assert!(Seal::read(&path).unwrap().fits(&first.check()));
        assert!(second.fitted(&first.check()).is_ok());
        let why = second.fitted(&seal(1).check()).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains(&path.display().to_string()) && why.contains("--master-key-file"), "{why}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_key_is_replaced_in_two_steps_and_between_them_both_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let (old, _) = Seal::load_or_create(&path).unwrap();
        let before = old.seal(b"a", "whsec_1");
        let both = Seal::begin_rotation(&path).unwrap();
        assert!(both.fits(&old.check()) && both.check() != old.check());
        let until_then = both.fitted(&old.check()).unwrap().seal(b"a", "whsec_2");
        assert_eq!(old.open(b"a", &until_then).as_deref(), Some("whsec_2"), "a store's own key seals what it keeps");
        assert_eq!(both.open(b"a", &before).as_deref(), Some("whsec_1"));
        let after = both.reseal(b"a", &before).unwrap();
        assert_eq!(both.reseal(b"b", &before), None, "nor does it help to move it");
        assert_ne!(after[..ID_BYTES], before[..ID_BYTES], "the key's id stands before what it sealed");
        // Stopped in between, it goes on with the same new key.
        let again = Seal::begin_rotation(&path).unwrap();
        assert_eq!(again.check(), both.check());
        Seal::end_rotation(&path).unwrap();
        let new = Seal::read(&path).unwrap();
        assert_eq!((new.check(), new.fits(&old.check())), (both.check(), false));
        assert_eq!((new.open(b"a", &after).as_deref(), new.open(b"a", &before)), (Some("whsec_1"), None));
        assert_eq!(old.open(b"a", &after), None);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn the_key_of_links_outlives_the_master_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let (old, _) = Seal::load_or_create(&path).unwrap();
        let kept = old.new_link_key();
        let key = old.link_key(&kept).unwrap();
        assert_ne!(key, old.link_key(&old.new_link_key()).unwrap());
        let resealed = Seal::begin_rotation(&path).unwrap().reseal_link_key(&kept).unwrap();
        Seal::end_rotation(&path).unwrap();
        let new = Seal::read(&path).unwrap();
        assert_eq!(new.link_key(&resealed), Ok(key));
        assert!(new.link_key(&kept).is_err() && new.reseal_link_key(&kept).is_err() && new.link_key("?").is_err());
    }

    #[test]
    fn of_many_who_make_a_key_at_once_all_get_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let found: Vec<(String, bool)> = std::thread::scope(|scope| {
            let one = || Seal::load_or_create(&path).map(|(seal, is_made)| (seal.check(), is_made)).unwrap();
            let all: Vec<_> = (0..16).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(found.iter().filter(|(_, is_made)| *is_made).count(), 1);
        assert!(found.iter().all(|(check, _)| *check == found[0].0));
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused_by_name_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let three = format!("{0}\n{0}\n{0}\n", "ab".repeat(32));
        for text in ["", "hush", &"+1".repeat(32), &"ab".repeat(31), &"ab".repeat(33), &three] {
            std::fs::write(&path, text).unwrap();
            let why = format!("{:#}", Seal::load_or_create(&path).unwrap_err());
            assert!(why.contains("master-key") && why.contains("64 hexadecimal digits"), "{why}");
            assert!(text.is_empty() || !why.contains(text));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let missing = format!("{:#}", Seal::read(&folder.path().join("elsewhere")).unwrap_err());
        assert!(missing.contains("elsewhere"), "{missing}");
    }
}
