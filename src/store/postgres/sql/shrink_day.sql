-- Gives a day that was dropped a smaller partition, with what is kept of it.
--
-- Two nodes at once: under the lock that all makers and droppers of days
-- share; the parent has been closed to everyone since the day was detached.
--
-- No index is used; attaching reads the new partition and the rest once.
ALTER TABLE posthaste.:parent_kept_:day RENAME TO :parent_:day;
ALTER TABLE posthaste.:parent ATTACH PARTITION posthaste.:parent_:day FOR VALUES FROM (:from) TO (:to);
