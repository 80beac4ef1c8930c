//! Every profile is verified as it is signed, and what is refused is told why.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use posthaste_receiver::{Profile, SecretError, Verifier, VerifyError};
use proptest::prelude::*;

use crate::signed::{OTHER_SECRET, SECRET, at, headers, profile, seconds_now, standard};

const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const BODY: &str = r#"{"test": 2432232314}"#;
const SIGNED_AT: u64 = 1_614_265_330;

fn verifier(profile: Profile, secrets: &[&str]) -> Verifier {
    Verifier::new(profile, secrets).unwrap()
}

/// From the reference libraries, and from `openssl dgst -sha256 -hmac`.
#[test]
fn published_signatures_are_verified() {
    let over_both = "2e37df5d4a028c51a7f3133d64ae1e300d2c2c900f1b1d49d4369ad2530f8964";
    let over_body = "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c";
    let tokens = |id: &'static str, timestamp: &'static str, signature: &'static str| {
        headers([
            (id, ID.to_owned()),
            (timestamp, SIGNED_AT.to_string()),
            (signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned()),
        ])
    };
    let published = [
        (Profile::Standard, tokens("webhook-id", "webhook-timestamp", "webhook-signature")),
        (Profile::Svix, tokens("svix-id", "svix-timestamp", "svix-signature")),
        (Profile::Stripe, headers([("stripe-signature", format!("t={SIGNED_AT},v1={over_both}"))])),
        (Profile::Timestamped, headers([("x-signature", format!("scheme=v1,ts={SIGNED_AT},sig={over_both}"))])),
        (Profile::Github, headers([("x-hub-signature-256", over_body.to_owned())])),
        (Profile::Sha256, headers([("x-signature", over_body.to_owned())])),
    ];
    assert_eq!(published.len(), Profile::ALL.len());
    for (profile, headers) in published {
        let verified = verifier(profile, &[SECRET]).verify(&headers, BODY.as_bytes(), at(SIGNED_AT));
        let verified = verified.unwrap_or_else(|problem| panic!("{profile}: {problem}"));
        let signs_time = !matches!(profile, Profile::Github | Profile::Sha256);
        assert_eq!(verified.signed_at, signs_time.then(|| at(SIGNED_AT)), "{profile}");
        let signs_id = matches!(profile, Profile::Standard | Profile::Svix);
        assert_eq!(verified.signed_id, signs_id.then_some(ID), "{profile}");
    }
}

#[test]
fn a_public_key_verifies_what_its_private_key_signed() {
    let private = "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    let public = format!("whpk_{}", STANDARD.encode(&STANDARD.decode(private).unwrap()[32..]));
    let published = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";
    let mut headers = standard(SECRET, ID, SIGNED_AT, BODY);
    let both = format!("{} {published}", headers["webhook-signature"].to_str().unwrap());
    headers.insert("webhook-signature", both.parse().unwrap());
    let verify = |secrets: &[&str], headers: &HeaderMap, body: &str| {
        let verifier = verifier(Profile::Standard, secrets);
        verifier.verify(headers, body.as_bytes(), at(SIGNED_AT)).map(|verified| verified.secret)
    };
    assert_eq!(verify(&[&public], &headers, BODY), Ok(0));
    assert_eq!(verify(&[SECRET], &headers, BODY), Ok(0));
    assert_eq!(verify(&[OTHER_SECRET, &public], &headers, BODY), Ok(1));
    let no_match = VerifyError::NoMatch {
        header: "webhook-signature",
        signed: "webhook-id, webhook-timestamp or the body",
        secrets: 1,
    };
    assert_eq!(verify(&[&public], &headers, "{}"), Err(no_match.clone()));
    let another = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let another = format!("whpk_{}", STANDARD.encode(another.public_key()));
    assert_eq!(verify(&[&another], &headers, BODY), Err(no_match));
    let without = standard(SECRET, ID, SIGNED_AT, BODY);
    let told = verify(&[&public], &without, BODY).unwrap_err().to_string();
    assert_eq!(told, "the header webhook-signature has no signature that a public key can check");
}

#[test]
fn the_published_library_agrees_with_the_verifier() {
    let now = seconds_now();
    let oracle = standardwebhooks::Webhook::new(SECRET).unwrap();
    let right = standard(SECRET, ID, now, BODY)["webhook-signature"].to_str().unwrap().to_owned();
    let wrong = standard(OTHER_SECRET, ID, now, BODY)["webhook-signature"].to_str().unwrap().to_owned();
    let unpadded = right.trim_end_matches('=').to_owned();
    let upper = right.replacen("v1,", "V1,", 1);
    for (tokens, is_valid) in [
        (right.clone(), true),
        (format!("{wrong} {right}"), true),
        (format!("v2,{right} v1 junk {right}"), true),
        (format!("  {right}  "), true),
        (wrong, false),
        (unpadded, false),
        (upper, false),
        (right.replace(',', "=").to_string(), false),
        (format!("v1,{right}"), false),
        (String::new(), false),
    ] {
        let headers = headers([
            ("webhook-id", ID.to_owned()),
            ("webhook-timestamp", now.to_string()),
            ("webhook-signature", tokens.clone()),
        ]);
        let verified = verifier(Profile::Standard, &[SECRET]).verify(&headers, BODY.as_bytes(), at(now));
        assert_eq!(verified.is_ok(), is_valid, "{tokens:?}");
        assert_eq!(oracle.verify(BODY.as_bytes(), &headers).is_ok(), is_valid, "the library: {tokens:?}");
    }
}

proptest! {
    #[test]
    fn what_is_signed_is_verified_and_a_changed_byte_is_not(
        key in proptest::collection::vec(any::<u8>(), 1..80),
        id in "[a-zA-Z0-9_-]{1,40}",
        body in "\\PC{1,60}",
        seconds in 0_u64..4_000_000_000,
        flip in any::<proptest::sample::Index>(),
    ) {
        let secret = format!("whsec_{}", STANDARD.encode(&key));
        for each in Profile::ALL {
            let headers = profile(each, &secret, &id, seconds, &body);
            let verifier = verifier(each, &[OTHER_SECRET, &secret]);
            let verified = verifier.verify(&headers, body.as_bytes(), at(seconds));
            prop_assert_eq!(verified.map(|verified| verified.secret), Ok(1), "{}", each);
            let mut changed = body.clone().into_bytes();
            let place = flip.index(changed.len());
            changed[place] ^= 1;
            prop_assert!(verifier.verify(&headers, &changed, at(seconds)).is_err(), "{}", each);
        }
    }
}

#[test]
fn five_minutes_are_trusted_in_both_directions() {
    for each in [Profile::Standard, Profile::Svix, Profile::Stripe, Profile::Timestamped] {
        let headers = profile(each, SECRET, ID, SIGNED_AT, BODY);
        let told = |now| verifier(each, &[SECRET]).verify(&headers, BODY.as_bytes(), at(now)).map(drop);
        assert_eq!((told(SIGNED_AT + 300), told(SIGNED_AT - 300)), (Ok(()), Ok(())), "{each}");
        assert!(matches!(told(SIGNED_AT + 301), Err(VerifyError::TooOld { age: 301, tolerance: 300, .. })), "{each}");
        assert!(matches!(told(SIGNED_AT - 301), Err(VerifyError::TooNew { ahead: 301, .. })), "{each}");
        let patient = verifier(each, &[SECRET]).tolerance(std::time::Duration::from_secs(3_600));
        assert!(patient.verify(&headers, BODY.as_bytes(), at(SIGNED_AT + 3_600)).is_ok(), "{each}");
    }
    let headers = profile(Profile::Github, SECRET, ID, SIGNED_AT, BODY);
    let verifier = verifier(Profile::Github, &[SECRET]);
    assert!(verifier.verify(&headers, BODY.as_bytes(), at(9_000_000_000)).is_ok(), "it signs no time");
}

#[test]
fn a_refusal_says_which_check_failed_and_never_the_secret() {
    let good = || standard(SECRET, ID, SIGNED_AT, BODY);
    let changed = |name: &'static str, value: &str| {
        let mut headers = good();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let missing = |name: &str| {
        let mut headers = good();
        headers.remove(name);
        headers
    };
    let signature = |value: &str| headers([("x-signature", value.to_owned())]);
    for (profile, headers, said) in [
        (Profile::Standard, missing("webhook-id"), "the header webhook-id is missing"),
        (Profile::Standard, missing("webhook-signature"), "the header webhook-signature is missing"),
        (Profile::Svix, good(), "the header svix-id is missing"),
        (Profile::Standard, changed("webhook-timestamp", "+1614265330"), "not a whole number of seconds"),
        (Profile::Standard, changed("webhook-timestamp", ""), "not a whole number of seconds"),
        (Profile::Standard, changed("webhook-timestamp", "1614265331"), "no signature in webhook-signature fits"),
        (Profile::Standard, changed("webhook-id", "other"), "no signature in webhook-signature fits"),
        (Profile::Standard, changed("webhook-signature", "v2,AAAA"), "has no signature that a shared secret can check"),
        (Profile::Timestamped, signature("sha256=00"), "is not written as scheme=v1,ts=…,sig=…"),
        (Profile::Timestamped, signature("scheme=v2,ts=1614265330,sig=00"), "is not written as scheme=v1"),
        (Profile::Timestamped, signature("scheme=v1,ts=1614265330,sig=00"), "no signature in x-signature fits"),
        (Profile::Sha256, signature("sha256=zz"), "is not written as sha256=… in hex"),
    ] {
        let told = verifier(profile, &[SECRET]).verify(&headers, BODY.as_bytes(), at(SIGNED_AT)).unwrap_err();
        assert!(told.to_string().contains(said), "{told}, not {said}");
        assert!(!told.to_string().contains(&SECRET[6..]), "{told}");
    }
    assert_eq!(format!("{:?}", verifier(Profile::Standard, &[SECRET])), "Verifier(standard, 1 secrets)");
}

#[test]
fn a_secret_that_cannot_be_used_is_refused_at_once() {
    let told = |profile, secrets: &[&str]| Verifier::new(profile, secrets).map(drop).unwrap_err();
    assert_eq!(told(Profile::Standard, &[]), SecretError::None);
    assert_eq!(told(Profile::Standard, &[SECRET, " "]), SecretError::Empty(1));
    assert_eq!(told(Profile::Standard, &["whsec_"]), SecretError::Empty(0));
    assert_eq!(told(Profile::Standard, &["whsec_%%"]), SecretError::Unreadable(0));
    assert_eq!(told(Profile::Standard, &["whpk_AAAA"]), SecretError::Unreadable(0));
    let public = format!("whpk_{}", STANDARD.encode([7; 32]));
    assert_eq!(told(Profile::Github, &[&public]), SecretError::NoPublicKeys(0, Profile::Github));
    assert!("github".parse() == Ok(Profile::Github) && "GitHub".parse::<Profile>().is_err());
    // Some senders show their secrets without the prefix.
    let headers = standard(SECRET, ID, SIGNED_AT, BODY);
    assert!(verifier(Profile::Standard, &[&SECRET[6..]]).verify(&headers, BODY.as_bytes(), at(SIGNED_AT)).is_ok());
}
