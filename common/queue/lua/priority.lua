#!lua flags=allow-oom
-- Sets which of several runs is served first; consumers read it again every second.
-- KEYS  of the run
-- ARGV  3 the priority, a whole number: the higher is served first
-- Returns  the priority before the call
-- Idempotent  by nature
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
if not string.find(ARGV[3], '^-?%d+$') then return redis.error_reply('GENQ_BAD no whole number') end
local before = call('HGET', meta, 'priority')
call('HSET', meta, 'priority', ARGV[3])
return tonumber(before)
