#!lua flags=no-writes
-- Takes one consistent sample of a run, for the audit. Cheap at any size: nothing is walked but
-- two bitmaps and what stock RQ workers are running.
-- KEYS  of the run
-- ARGV  none
-- Returns  {numbers, the run's facts, its counters}; the numbers in the order of the last table
-- Idempotent  it writes nothing
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
local queued = call('LLEN', queue) + call('LLEN', inter)
local ghostly = queued > 0 and call('SCARD', ghosts) or 0
local taking, stock = {}, 0
for _, id in ipairs(call('LRANGE', inter, 0, 199)) do taking[id] = true end
for id in pairs(stock_running()) do -- counted where else it is, if it is elsewhere, too
  local n = item_of(id)
  local elsewhere = taking[id] or not n or call('GETBIT', done, n) == 1
    or call('HEXISTS', holder, n) == 1 or state == 'cancelled'
  if not elsewhere then stock = stock + 1 end
end
local own = call('ZCARD', lease)
local overdue = call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
return { {
  queued - ghostly,
  call('ZCARD', scheduled),
  own + stock,
  call('XLEN', stream),
  call('BITCOUNT', committed),
  call('ZCARD', failed),
  call('BITCOUNT', done),
  ghostly,
  call('LLEN', foreign),
  call('HLEN', holder) - own,
  call('ZCOUNT', wip, '+inf', '+inf') - own,
  call('ZCARD', finished),
  call('LLEN', inter),
  now,
  overdue and math.max(0, now - math.floor(overdue * 1000)) or 0,
}, call('HGETALL', meta), call('HGETALL', counts) }
