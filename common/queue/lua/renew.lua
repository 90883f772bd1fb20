#!lua flags=allow-oom
-- Gives a run another epoch, so that whoever knows the run looks at it, and at storage, anew.
-- KEYS  of the run
-- ARGV  3 the epoch that it has; 4 the one that it gets
-- Returns  the run's epoch now
-- Idempotent  by the epoch: only the one that is named is replaced
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
if epoch ~= ARGV[3] then return epoch end
call('HSET', meta, 'epoch', ARGV[4])
return ARGV[4]
