//! The choice of the mode: by the environment, by the code, and where enforcement is required.

use super::*;
use crate::{
    Idempotency,
    settings::{Mode, Settings},
    store::memory::MemoryStore,
};

const NOT_ENFORCED: [Mode; 2] = [Mode::Off, Mode::Shadow];

#[test]
fn mode_off_needs_no_store() {
    use crate::store::NamedStore;
    let unset = || (None, None);
    assert!(matches!(NamedStore::named_in(Mode::Off, unset()), Ok(NamedStore::Memory)));
    for mode in [Mode::Shadow, Mode::Enforce] {
        assert!(NamedStore::named_in(mode, unset()).is_err(), "{mode:?}");
    }
    let both = (Some("t".to_owned()), Some("memory:".to_owned()));
    assert!(NamedStore::named_in(Mode::Off, both).is_err());
}

fn built(mode: Mode, required: Option<&'static str>) -> Result<Idempotency, crate::Error> {
    let builder = Idempotency::builder(MemoryStore::new()).function("tests").mode(mode);
    builder.build_in(|name| (name == "IDEMPOTENCY_REQUIRED").then(|| required.map(str::to_owned)).flatten())
}

#[test]
fn required_enforcement_refuses_other_modes() {
    for mode in NOT_ENFORCED {
        let error = built(mode, Some("1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("IDEMPOTENCY_REQUIRED=1"), "{error}");
        for required in [None, Some("0"), Some("")] {
            assert!(built(mode, required).is_ok(), "{required:?}");
        }
        let enforced = built(Mode::Enforce, Some("1")).unwrap();
        assert!(enforced.with_settings(|settings| settings.mode = mode).is_err());
    }
    let error = built(Mode::Enforce, Some("yes")).unwrap_err();
    assert!(error.to_string().contains("neither 1 nor 0"), "{error}");
}

#[test]
fn kill_switch_overrides_required_enforcement() {
    let built = |mode: Mode, required: &'static str, switch: &'static str| {
        let builder = Idempotency::builder(MemoryStore::new()).function("tests").mode(mode);
        builder.build_in(|name| match name {
            "IDEMPOTENCY_REQUIRED" => Some(required.to_owned()),
            "IDEMPOTENCY_MODE" => Some(switch.to_owned()),
            _ => None,
        })
    };
    for (mode, required, switch, is_built) in [
        (Mode::Off, "1", "off!", true),
        (Mode::Off, "1", "off", false),
        (Mode::Off, "0", "off!", true),
        // The function's code has chosen another mode, so the variable doesn't switch it off.
        (Mode::Shadow, "1", "off!", false),
        (Mode::Enforce, "1", "off!", true),
    ] {
        assert_eq!(built(mode, required, switch).is_ok(), is_built, "{mode:?} {required} {switch}");
    }
    let off = built(Mode::Off, "1", "off!").unwrap();
    assert!(off.with_settings(|settings| settings.mode = Mode::Off).is_ok());
    let error = built(Mode::Off, "1", "off").unwrap_err();
    assert!(error.to_string().contains("IDEMPOTENCY_MODE=off!"), "{error}");
}

#[test]
fn environment_sets_the_mode() {
    let mode = |name: Option<&str>| super::super::builder::mode_in(|_| name.map(str::to_owned));
    for (name, expected) in [
        ("off", Mode::Off),
        ("off!", Mode::Off),
        ("shadow", Mode::Shadow),
        ("enforce", Mode::Enforce),
        ("", Mode::Enforce),
    ] {
        assert_eq!(mode(Some(name)).unwrap(), (!name.is_empty()).then_some(expected));
    }
    assert_eq!(mode(None).unwrap(), None);
    for wrong in ["Off", "false", "disabled", "1", "off!!", "shadow!", "enforce!"] {
        let error = mode(Some(wrong)).unwrap_err().to_string();
        assert!(error.contains("IDEMPOTENCY_MODE") && error.contains(wrong), "{error}");
    }
}

#[test]
fn settings_keep_the_environment_mode() {
    let built = |outside: Option<Mode>, code: Option<Mode>| {
        let mut settings = Settings::default();
        settings.mode = Mode::Shadow;
        let builder = Idempotency::builder(MemoryStore::new()).function("tests").outside(outside, false);
        let builder = builder.settings(|s| *s = settings);
        let builder = match code {
            Some(mode) => builder.mode(mode),
            None => builder,
        };
        builder.build_in(|_| None).unwrap().settings().mode
    };
    assert_eq!(built(None, None), Mode::Shadow);
    for outside in [Mode::Off, Mode::Enforce] {
        assert_eq!(built(Some(outside), None), outside);
        assert_eq!(built(Some(outside), Some(Mode::Shadow)), Mode::Shadow);
    }
}

#[test]
fn only_mode_off_works_without_store() {
    let off = || Idempotency::builder(MemoryStore::new()).function("tests").outside(Some(Mode::Off), true);
    let built = off().settings(|s| *s = Settings::default()).build_in(|_| None).unwrap();
    assert_eq!(built.settings().mode, Mode::Off);
    for mode in [Mode::Enforce, Mode::Shadow] {
        let errors = [
            off().mode(mode).build_in(|_| None).unwrap_err(),
            built.with_settings(|settings| settings.mode = mode).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("no store is configured"), "{error}");
        }
    }
}
