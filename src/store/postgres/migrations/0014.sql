-- The trace that a producer gave with an event: its `traceparent`, and after a
-- blank its `tracestate`. It is no part of what makes a repeat another event.
ALTER TABLE posthaste.events ADD COLUMN trace text;
