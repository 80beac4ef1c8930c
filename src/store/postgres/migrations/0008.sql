-- One spelling. Nodes of the version before this one must be stopped first.
ALTER TABLE posthaste.catalogue RENAME TO catalog;
