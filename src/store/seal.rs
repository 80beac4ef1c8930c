//! Encrypts what must stay secret from anyone who can read the store.
//!
//! An installation has one master key, kept in a file. Three values are
//! derived from it: the key that seals (encrypts), a short key id that stands
//! before every sealed text, and a check text that shows whether a key fits
//! without revealing it. While a key is being replaced, the file holds both
//! keys, the new one first. The store decides which of them seals, by the
//! check text it has stored.
//!
//! Invariant: a sealed text opens only under its own key and with the same
//! context (`about`), so a row copied to another endpoint is worthless there.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::RwLock;

use super::durable_file::{folder_of, put_if_absent, put_in_place, write_unnamed};
use crate::model::id::EndpointId;

/// Name of the master key's file in a data directory.
pub const MASTER_KEY_FILE: &str = "master-key";
/// Name of the note with the check text of the key that a store is sealed under.
pub const CHECK_NOTE: &str = "master_key_check";

/// Name of the note with the check text of the key that is about to be used, while a
/// key is being replaced; empty otherwise.
pub const NEXT_CHECK_NOTE: &str = "master_key_next_check";

/// Name of the note with the sealed key that signs links.
pub const LINK_KEY_NOTE: &str = "link_key";

const ABOUT_LINKS: &[u8] = b"link key";
const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 4;

/// The master key, and while it is being replaced also the old one. Clones share
/// their keys, so that a key that is replaced while the gateway runs is replaced
/// everywhere.
#[derive(Clone)]
pub struct Seal {
    ring: Arc<RwLock<KeyRing>>,
    file: Option<PathBuf>,
}

/// The keys of a seal.
#[derive(Clone)]
struct KeyRing {
    /// All keys that can open sealed texts.
    keys: Vec<Arc<MasterKey>>,
    /// Index of the key that seals.
    first: usize,
}

struct MasterKey {
    key: RandomizedNonceKey,
    id: [u8; ID_BYTES],
    check: String,
}

/// The stored secrets were sealed under another key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the master key{} does not fit this database, whose secrets are sealed under another; put the master-key file in its \
     place with which it was first used, or name that with --master-key-file", .file.as_ref().map(|file| format!(" in {}", file.display())).unwrap_or_default()
)]
pub struct WrongKey {
    /// File that holds the wrong key.
    pub file: Option<PathBuf>,
}

/// The master key file is missing, and the stored secrets were sealed under a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the master key is missing: there is no file {}, and the secrets of this database are sealed under a key; restore \
     the master-key file with which it was first used (on a further node, copy that of the first), or name it with \
     --master-key-file", .file.display()
)]
pub struct MissingKey {
    /// Path where the key file was expected.
    pub file: PathBuf,
}

/// A sealed text cannot be opened: it is damaged, or was sealed with another
/// context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} cannot be opened with the master key: it is damaged, or was sealed for something else")]
pub struct SealError(pub String);

impl MasterKey {
    fn new(master: [u8; KEY_BYTES]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, &master);
        // One derived key per purpose: the public check text reveals nothing
        // about the key that seals.
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
    /// Creates a seal with this master key.
    pub fn from_key(master: [u8; KEY_BYTES]) -> Self {
        Self::from_keys(&[master])
    }

    /// Creates a seal that seals with the first of these keys and opens with all.
    fn from_keys(masters: &[[u8; KEY_BYTES]]) -> Self {
        let keys = masters.iter().map(|master| Arc::new(MasterKey::new(*master))).collect();
        Self::of_ring(KeyRing { keys, first: 0 }, None)
    }

    fn of_ring(ring: KeyRing, file: Option<PathBuf>) -> Self {
        Self { ring: Arc::new(RwLock::new(ring)), file }
    }

    /// Reads the key from a file, or creates the file with a new key. Also
    /// returns whether the key was created. If several processes do this at
    /// once, one creates the key and all read the same.
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

    /// Reads the key from a file: 64 hexadecimal digits; while the key is being
    /// replaced, the old one is in a second line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { file: Some(path.to_owned()), ..Self::from_keys(&read_keys(path)?) })
    }

    /// Begins to replace the key in a file: afterwards it holds a new key and
    /// then the old one. A replacement that was begun before is continued.
    pub fn begin_rotation(path: &Path) -> anyhow::Result<Self> {
        let keys = read_keys(path)?;
        if let [old] = keys[..] {
            let text = format!("{}\n{}\n", hex::encode(rand::random::<[u8; KEY_BYTES]>()), hex::encode(old));
            replace(path, &text).with_context(|| format!("cannot write a master key to {}", path.display()))?;
        }
        Self::read(path)
    }

    /// Removes the old key from a file, once nothing is sealed under it.
    pub fn end_rotation(path: &Path) -> anyhow::Result<()> {
        let keys = read_keys(path)?;
        replace(path, &format!("{}\n", hex::encode(keys[0])))
            .with_context(|| format!("cannot take the old master key out of {}", path.display()))
    }

    fn first(&self) -> Arc<MasterKey> {
        let ring = self.ring.read();
        ring.keys[ring.first].clone()
    }

    /// Reads the file again, if there is one, and adds the keys that it has and this
    /// process does not. The key that seals stays the same.
    fn read_again(&self) {
        let Some(masters) = self.file.as_deref().and_then(|file| read_keys(file).ok()) else { return };
        let mut ring = self.ring.write();
        for master in masters.into_iter().map(MasterKey::new) {
            if !ring.keys.iter().any(|known| known.id == master.id) {
                ring.keys.push(Arc::new(master));
            }
        }
    }

    /// Whether the key of this check text is here, if need be after a look into the
    /// file.
    pub fn learn(&self, check: &str) -> bool {
        if !self.fits(check) {
            self.read_again();
        }
        self.fits(check)
    }

    /// Seals with the key of this check text from now on, in all clones. The file is
    /// read again if the key is not here yet.
    pub fn use_key(&self, check: &str) -> Result<(), WrongKey> {
        if self.first().fits(check) {
            return Ok(());
        }
        self.learn(check);
        let mut ring = self.ring.write();
        match ring.keys.iter().position(|master| master.fits(check)) {
            Some(first) => {
                ring.first = first;
                Ok(())
            }
            None => Err(WrongKey { file: self.file.clone() }),
        }
    }

    /// Whether a text was sealed under another key than the one that seals now.
    pub fn is_outdated(&self, sealed: &[u8]) -> bool {
        !sealed.starts_with(&self.first().id)
    }

    /// Whether a stored key that signs links is sealed under another key than the one
    /// that seals now.
    pub fn is_link_key_outdated(&self, stored: &str) -> bool {
        STANDARD.decode(stored).is_ok_and(|sealed| self.is_outdated(&sealed))
    }

    /// Returns the file of the key, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Removes the old key from a file whose first key is that of this check text, if
    /// there is an old one.
    pub fn end_rotation_to(path: &Path, check: &str) -> anyhow::Result<()> {
        let keys = read_keys(path)?;
        match keys[..] {
            [new, _] if MasterKey::new(new).fits(check) => Self::end_rotation(path),
            _ => Ok(()),
        }
    }

    /// Seals a text. It can be opened only with the same context `about`.
    pub fn seal(&self, about: &[u8], text: &str) -> Vec<u8> {
        let mut body = text.as_bytes().to_vec();
        let master = self.first();
        let nonce = master
            .key
            .seal_in_place_append_tag(Aad::from(about), &mut body)
            .expect("a text in memory is not too long to be sealed");
        [master.id.as_slice(), nonce.as_ref(), &body].concat()
    }

    /// Whether the old key is still in the file.
    pub fn is_rotating(&self) -> bool {
        self.ring.read().keys.len() > 1
    }

    /// Opens a text, if one of the keys sealed it with this context. For a text of an
    /// unknown key the file is read again: the key may have been replaced meanwhile.
    pub fn open(&self, about: &[u8], sealed: &[u8]) -> Option<String> {
        let find = || self.ring.read().keys.iter().find(|master| sealed.starts_with(&master.id)).cloned();
        let master = find().or_else(|| {
            self.read_again();
            find()
        });
        master?.open(about, sealed)
    }

    /// Seals a sealed text again, under the key that seals now.
    pub fn reseal(&self, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.open(about, sealed).map(|text| self.seal(about, &text))
    }

    /// Returns a new key to sign links with, sealed for storage.
    pub fn new_link_key(&self) -> String {
        STANDARD.encode(self.seal(ABOUT_LINKS, &hex::encode(rand::random::<[u8; KEY_BYTES]>())))
    }

    /// Opens a stored key that signs links.
    pub fn link_key(&self, stored: &str) -> Result<[u8; KEY_BYTES], SealError> {
        let text = STANDARD.decode(stored).ok().and_then(|sealed| self.open(ABOUT_LINKS, &sealed));
        text.and_then(|text| from_hex(&text)).ok_or_else(|| SealError("the key of links".into()))
    }

    /// Seals a stored key that signs links again, under the key that seals now.
    pub fn reseal_link_key(&self, stored: &str) -> Result<String, SealError> {
        let sealed = STANDARD.decode(stored).ok().and_then(|sealed| self.reseal(ABOUT_LINKS, &sealed));
        sealed.map(|sealed| STANDARD.encode(sealed)).ok_or_else(|| SealError("the key of links".into()))
    }

    /// Returns the check text to store with what is sealed. [`Seal::fits`]
    /// compares it with a key; it does not reveal the key.
    pub fn check_text(&self) -> String {
        self.first().check.clone()
    }

    /// Whether one of the keys made this check text.
    pub fn fits(&self, check: &str) -> bool {
        self.ring.read().keys.iter().any(|master| master.fits(check))
    }

    /// Returns the same keys, with the one that made this check text as the key
    /// that seals. The error names the key file and says what to do.
    pub fn for_store(&self, check: &str) -> Result<Self, WrongKey> {
        let ring = self.ring.read().clone();
        match ring.keys.iter().position(|master| master.fits(check)) {
            Some(first) => Ok(Self::of_ring(KeyRing { first, ..ring }, self.file.clone())),
            None => Err(WrongKey { file: self.file.clone() }),
        }
    }
}

/// Returns the context in which a text of an endpoint is sealed.
pub type AssociatedData = fn(EndpointId) -> Vec<u8>;

/// Returns the context in which an endpoint's settings are sealed.
pub fn about_settings(endpoint: EndpointId) -> Vec<u8> {
    [endpoint.0.as_bytes().as_slice(), b" settings"].concat()
}

/// Returns the context in which an endpoint's URLs are sealed.
pub fn about_urls(endpoint: EndpointId) -> Vec<u8> {
    [endpoint.0.as_bytes().as_slice(), b" urls"].concat()
}

/// Returns the context in which an endpoint's secrets are sealed.
pub fn about_secret(endpoint: EndpointId) -> Vec<u8> {
    endpoint.0.as_bytes().to_vec()
}

/// Prints no key.
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

/// Writes a new key unless the file exists. Returns whether it was written:
/// another process may be faster.
fn create(path: &Path) -> anyhow::Result<bool> {
    let key: [u8; KEY_BYTES] = rand::random();
    Ok(put_if_absent(write_temporary(path, &format!("{}\n", hex::encode(key)))?, path)?)
}

/// Replaces a file by one with this text, whole or not at all.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(put_in_place(write_temporary(path, text)?, path)?)
}

/// Writes a text into a temporary file beside `path`, so that nobody reads it
/// half written.
fn write_temporary(path: &Path, text: &str) -> std::io::Result<tempfile::NamedTempFile> {
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
        let check = seal(1).check_text();
        assert!(seal(1).fits(&check) && seal(1).fits(&format!("{check}\n")));
        assert!(!seal(2).fits(&check) && !seal(1).fits("") && !seal(1).fits(&check[1..]));
        assert!(!check.contains(&hex::encode([1; 4])));
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
        assert!(!is_made && second.fits(&first.check_text()));
        assert!(Seal::read(&path).unwrap().fits(&first.check_text()));
        assert!(second.for_store(&first.check_text()).is_ok());
        let why = second.for_store(&seal(1).check_text()).map(|_| ()).unwrap_err().to_string();
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
        assert!(both.fits(&old.check_text()) && both.check_text() != old.check_text());
        let until_then = both.for_store(&old.check_text()).unwrap().seal(b"a", "whsec_2");
        assert_eq!(old.open(b"a", &until_then).as_deref(), Some("whsec_2"), "a store's own key seals what it keeps");
        assert_eq!(both.open(b"a", &before).as_deref(), Some("whsec_1"));
        let after = both.reseal(b"a", &before).unwrap();
        assert_eq!(both.reseal(b"b", &before), None, "nor does it help to move it");
        assert_ne!(after[..ID_BYTES], before[..ID_BYTES], "the key's id stands before what it sealed");
        // A rotation that was stopped continues with the same new key.
        let again = Seal::begin_rotation(&path).unwrap();
        assert_eq!(again.check_text(), both.check_text());
        Seal::end_rotation(&path).unwrap();
        let new = Seal::read(&path).unwrap();
        assert_eq!((new.check_text(), new.fits(&old.check_text())), (both.check_text(), false));
        assert_eq!((new.open(b"a", &after).as_deref(), new.open(b"a", &before)), (Some("whsec_1"), None));
        assert_eq!(old.open(b"a", &after).as_deref(), Some("whsec_1"), "a running process reads its file again");
        assert!(old.is_outdated(&after) && old.use_key(&new.check_text()).is_ok() && !old.is_outdated(&after));
        assert!(old.use_key(&seal(9).check_text()).is_err() && !old.is_outdated(&after), "an unknown key is not used");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn the_key_of_links_outlives_the_master_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let (old, _) = Seal::load_or_create(&path).unwrap();
        let stored = old.new_link_key();
        let key = old.link_key(&stored).unwrap();
        assert_ne!(key, old.link_key(&old.new_link_key()).unwrap());
        let resealed = Seal::begin_rotation(&path).unwrap().reseal_link_key(&stored).unwrap();
        Seal::end_rotation(&path).unwrap();
        let new = Seal::read(&path).unwrap();
        assert_eq!(new.link_key(&resealed), Ok(key));
        assert!(new.link_key(&stored).is_err() && new.reseal_link_key(&stored).is_err() && new.link_key("?").is_err());
    }

    #[test]
    fn of_many_who_make_a_key_at_once_all_get_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master-key");
        let results: Vec<(String, bool)> = std::thread::scope(|scope| {
            let one = || Seal::load_or_create(&path).map(|(seal, is_made)| (seal.check_text(), is_made)).unwrap();
            let all: Vec<_> = (0..16).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|(_, is_made)| *is_made).count(), 1);
        assert!(results.iter().all(|(check, _)| *check == results[0].0));
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
