#!lua flags=allow-oom
-- Closes a run in which nothing is open any more.
-- KEYS  of the run
-- ARGV  none
-- Returns  1 if the run is closed now, 0 if something is open
-- Idempotent  by nature
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
if state == 'closed' then return 1 end
if state == 'cancelled' then return 0 end
if call('LLEN', queue) == call('SCARD', ghosts) then -- nothing but ids of answered items
  for _, id in ipairs(call('LPOP', queue, CHUNK) or {}) do
    call('UNLINK', jobs .. (item_of(id) or ''))
    call('SREM', ghosts, item_of(id) or '')
  end
end
local open = call('LLEN', queue) + call('LLEN', inter) + call('ZCARD', lease)
  + call('ZCARD', scheduled) + call('XLEN', stream) + call('ZCARD', wip)
local newest = call('ZREVRANGE', failed, 0, 0)[1] -- a stock worker's failure would be this one
local stock = newest and call('HEXISTS', dead, item_of(newest) or '') == 0
local ended = call('BITCOUNT', committed) + call('ZCARD', failed) == total
if open > 0 or stock or not ended then return 0 end
-- Each closing has a number of its own. A server that lost its last moments may give one again,
-- but not at the same time.
call('HINCRBY', meta, 'closing', 1)
call('HSET', meta, 'state', 'closed', 'closed', now)
return 1
