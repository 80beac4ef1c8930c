-- Locks endpoints, in order.
--
-- Safe when two nodes run it at once: in the order of their numbers, after the
-- catalogue and before any lane, as whoever changes one does. So what is read
-- of an endpoint after this stays true until the commit. Served by the unique
-- index on their ids.
SELECT no FROM posthaste.endpoints WHERE id = ANY($1) ORDER BY no FOR UPDATE
