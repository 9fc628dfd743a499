use super::*;
use crate::testing::World;

fn update_to(world: &mut World, name: &str, level: i16, direction: Direction) -> Result<bool, UpdateRefused> {
    let update = Update { name: name.to_owned(), level, direction };
    match super::update(&world.view, &[update])? {
        Some(decision) => Ok(world.commit(&decision)),
        None => Ok(false),
    }
}

#[test]
fn a_level_moves_within_what_is_served_the_way_the_operator_means() {
    let mut world = World::with_brokers(1);
    let name = "metadata.version";
    let epoch = world.view.features().epoch;
    assert_eq!(update_to(&mut world, name, METADATA_VERSION, Direction::Upgrade), Ok(false));
    let down = UpdateRefused::Downgrade { name: name.to_owned(), level: 20 };
    assert_eq!(update_to(&mut world, name, 20, Direction::Upgrade), Err(down));
    assert_eq!(update_to(&mut world, name, 20, Direction::Downgrade), Ok(true));
    assert_eq!(world.view.features().finalized[name], 20);
    assert!(world.view.features().epoch > epoch);
    let up = UpdateRefused::Upgrade { name: name.to_owned(), level: 21 };
    assert_eq!(update_to(&mut world, name, 21, Direction::Downgrade), Err(up));
    assert_eq!(update_to(&mut world, name, 21, Direction::Upgrade), Ok(true));
    for level in [0, 6, METADATA_VERSION + 1] {
        let refused =
            UpdateRefused::Unsupported { name: name.to_owned(), level, min: 7, max: METADATA_VERSION };
        assert_eq!(update_to(&mut world, name, level, Direction::Downgrade), Err(refused));
    }
    let negative = UpdateRefused::Negative { name: name.to_owned(), level: -1 };
    assert_eq!(update_to(&mut world, name, -1, Direction::Downgrade), Err(negative));
}

#[test]
fn a_feature_that_is_not_served_stays_at_nothing() {
    let mut world = World::with_brokers(1);
    let name = "share.version".to_owned();
    let refused = UpdateRefused::Unsupported { name: name.clone(), level: 1, min: 0, max: 0 };
    assert_eq!(update_to(&mut world, &name, 1, Direction::Upgrade), Err(refused));
    assert_eq!(update_to(&mut world, &name, 0, Direction::Upgrade), Ok(false));
    assert_eq!(update_to(&mut world, "kraft.version", 0, Direction::Downgrade), Ok(true));
    assert!(!world.view.features().finalized.contains_key("kraft.version"));
}

#[test]
fn of_several_all_change_or_none() {
    let world = World::with_brokers(1);
    let one = |name: &str, level| Update { name: name.to_owned(), level, direction: Direction::Downgrade };
    let bad = super::update(&world.view, &[one("metadata.version", 20), one("kraft.version", 2)]);
    assert!(matches!(bad, Err(UpdateRefused::Unsupported { .. })), "{bad:?}");
    let twice = super::update(&world.view, &[one("metadata.version", 20), one("metadata.version", 19)]);
    assert_eq!(twice, Err(UpdateRefused::Twice("metadata.version".to_owned())));
    let both = super::update(&world.view, &[one("metadata.version", 20), one("kraft.version", 0)]);
    assert_eq!(both.unwrap().unwrap().writes().len(), 1);
}
