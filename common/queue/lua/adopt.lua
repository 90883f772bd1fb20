#!lua flags=allow-oom
-- Turns what a stock RQ worker is running into a short lease of ours, so that it comes back.
-- KEYS  of the run
-- ARGV  3 worker; 4 token; 5 lease ms; 6 job id
-- Returns  adopted, leased (by somebody else), unknown (not ours), or why there is nothing to do:
--          answered, cancelled (the run), queued (it was taken from this worker, and is back)
-- Idempotent  by the lease
local worker, token, id = ARGV[3], ARGV[4], ARGV[6]
local n = epoch and item_of(id)
if not n then return 'unknown' end
local member = stock_running()[id]
if member then call('ZREM', wip, member) end
call('LREM', inter, 0, id)
if call('GETBIT', done, n) == 1 then
  call('SREM', ghosts, n)
  return 'answered'
end
if call('HEXISTS', holder, n) == 1 then return 'leased' end
if state == 'cancelled' then -- `cancel` has taken the item off the counts
  call('UNLINK', jobs .. n, results .. n)
  return state
end
if not member and call('HGET', jobs .. n, 'status') == 'queued' then return 'queued' end
call('ZREM', scheduled, id)
call('ZREM', failed, id)
call('HDEL', expired, n)
call('ZADD', lease, now + tonumber(ARGV[5]), n)
in_force('longest_lease', tonumber(ARGV[5]))
call('HSET', holder, n, token .. ' ' .. worker)
call('ZADD', wip, '+inf', id .. ':' .. token)
return 'adopted'
