-- Fewer writes per delivery.

-- Finds the next of a lane: only what is behind the head of its lane is in it, so that
-- a delivery that is alone in its lane touches no index of lanes.
DROP INDEX deliveries_by_lane;
CREATE INDEX deliveries_behind ON deliveries (endpoint, lane, seq)
    WHERE lane IS NOT NULL AND passed = 0 AND behind = 1;

-- Records of attempts have short names for what every attempt has
-- (`attempt_record.rs`). Nothing changes in those that are here, and both forms are
-- read; versions that cannot read the short form refuse the store by its version.
