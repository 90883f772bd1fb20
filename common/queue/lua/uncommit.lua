#!lua
-- Puts committed items on the queue again whose part was deleted; opens the run if it is closed.
-- KEYS  of the run
-- ARGV  3... item numbers
-- Returns  how many were committed, and are queued now
-- Idempotent  by the committed bit
if bad_items(3, 1) then return redis.error_reply('GENQ_BAD no such item') end
if state == 'cancelled' then return redis.error_reply('GENQ_CLOSED ' .. state) end
local given = 0
settle()
for i = 3, #ARGV do
  local n = tonumber(ARGV[i])
  if call('GETBIT', committed, n) == 1 and call('SREM', ghosts, n) == 0 then
    call('RPUSH', queue, id_of(n))
  end
  if call('SETBIT', committed, n, 0) == 1 then
    call('SETBIT', done, n, 0)
    call('ZREM', finished, id_of(n))
    call('HDEL', jobs .. n, 'retries_left')
    lean(n, 'queued')
    given = given + 1
  end
end
call('HINCRBY', counts, 'committed', -given)
if given > 0 then call('HSET', counts, 'unseen', 1) end -- what verdicts they had: see `recount`
call('SADD', queues, queue)
if given > 0 and state == 'closed' then call('HSET', meta, 'state', 'open') end
return given
