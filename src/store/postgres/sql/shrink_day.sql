-- Attaches a smaller partition in place of a day that was dropped, with its
-- retained rows.
--
-- Two nodes at once: runs under the advisory lock that everyone who creates or
-- drops days takes; the parent has been locked since the day was detached.
--
-- Served by: no index; attaching reads the new partition and the default
-- partition once.
ALTER TABLE posthaste.:parent_kept_:day RENAME TO :parent_:day;
ALTER TABLE posthaste.:parent ATTACH PARTITION posthaste.:parent_:day FOR VALUES FROM (:from) TO (:to);
