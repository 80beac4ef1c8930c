-- Lists of what finished in a span of time.
--
-- Every state has its own stretch, so that the dead of an hour are found
-- without a look at what was delivered in it. Times of finish only grow, so a
-- new entry goes to the end of its stretch.
CREATE INDEX deliveries_by_finish ON deliveries (tenant, state, finished_at) WHERE finished_at IS NOT NULL;
