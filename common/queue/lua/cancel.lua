#!lua flags=allow-oom
-- Takes what is open out of a run, stock RQ workers' jobs too; results and dead letters stay.
-- KEYS  of the run
-- ARGV  3 limit; 4 rest: only end a cancel that has begun
-- Returns  how much may be left: 0 when all is gone
-- Idempotent  by nature
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
local limit, gone = tonumber(ARGV[3]), 0
if state == 'closed' then return redis.error_reply('GENQ_CLOSED ' .. state) end
if ARGV[4] == 'rest' and state ~= 'cancelled' then return 0 end
call('HSET', meta, 'state', 'cancelled')

local function drop(id)
  local n = item_of(id)
  if not n then return call('RPUSH', foreign, id) end
  call('UNLINK', jobs .. n, results .. n)
  forget_turns(n)
  for _, key in ipairs({ deliveries, deaths, expired }) do call('HDEL', key, n) end
  if call('SREM', ghosts, n) == 0 and call('GETBIT', done, n) == 0 then gone = gone + 1 end
end

for id, member in pairs(stock_running()) do -- each is told so when it gives the item back
  call('ZREM', wip, member)
  local n = item_of(id)
  if n and call('HEXISTS', holder, n) == 0 and not call('LPOS', inter, id) then drop(id) end
end
for _, list in ipairs({ queue, inter }) do
  for _, id in ipairs(call('LPOP', list, limit) or {}) do drop(id) end
end
for _, id in ipairs(call('ZRANGE', scheduled, 0, limit - 1)) do
  call('ZREM', scheduled, id)
  drop(id)
end
for _, n in ipairs(call('ZRANGE', lease, 0, limit - 1)) do
  unlease(n, call('HGET', holder, n))
  drop(id_of(n))
end
call('HINCRBY', counts, 'loaded', -gone)
local left = call('LLEN', queue) + call('LLEN', inter) + call('ZCARD', scheduled)
  + call('ZCARD', lease)
if left == 0 then -- a later load may put everything back
  call('DEL', chunks, ghosts)
  call('HSET', meta, 'reloaded', 1)
end
return left
