#!lua
-- Makes a run; one that exists is left as it is.
-- KEYS  of the run
-- ARGV  3 new epoch; 4 items; 5 attempts an item has; 6 priority; then name, value of further facts
-- Returns  the run's facts: name, value, ...
-- Idempotent  by the run's existence; the caller compares the fingerprints
if not epoch then
  if not tonumber(ARGV[4]) or not tonumber(ARGV[5]) or #ARGV % 2 ~= 0 then
    return redis.error_reply('GENQ_BAD a run needs its number of items and attempts')
  end
  call('HSET', meta, 'epoch', ARGV[3], 'state', 'loading', 'total', ARGV[4],
    'max_attempts', ARGV[5], 'priority', ARGV[6], 'created', now, 'since', now)
  if #ARGV > 6 then call('HSET', meta, unpack(ARGV, 7)) end
  call('XGROUP', 'CREATE', stream, 'sink', '0', 'MKSTREAM')
  call('SADD', queues, queue)
  call('ZADD', runs, clock[1], run)
end
return call('HGETALL', meta)
