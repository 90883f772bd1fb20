#!lua
-- Puts those of the given items on the queue that were loaded and are nowhere now: for repair.
-- KEYS  of the run
-- ARGV  3 how many entries of the queue may be looked through; then item numbers
-- Returns  {how many ids went on the queue, how many of the given items were looked at}
-- Idempotent  by looking everywhere first
if bad_items(4, 1) then return redis.error_reply('GENQ_BAD no such item') end
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
local room = tonumber(ARGV[3])
local stock, taking = stock_running(), {}
for _, id in ipairs(call('LRANGE', inter, 0, 999)) do taking[id] = true end

local function somewhere(n, id)
  if call('GETBIT', done, n) == 1 or call('HEXISTS', holder, n) == 1 or stock[id] or taking[id]
    or call('ZSCORE', scheduled, id) or call('ZSCORE', failed, id)
    or call('GETBIT', chunks, math.floor(n / CHUNK)) == 0 then
    return true
  end
  if call('HGET', jobs .. n, 'status') ~= 'queued' then return false end
  room = room - call('LLEN', queue) -- the id may be there, or a tool of RQ's has lost it
  return call('LPOS', queue, id)
end

settle()
local pushed, looked = 0, 0
for i = 4, #ARGV do
  local n = tonumber(ARGV[i])
  if room <= 0 then break end
  looked = looked + 1
  if not somewhere(n, id_of(n)) then
    lean(n, 'queued')
    call('RPUSH', queue, id_of(n))
    pushed = pushed + 1
  end
end
-- With every chunk loaded, all items are due: those that an unfinished cancel took out were counted
-- as not loaded.
local short = total - tonumber(call('HGET', counts, 'loaded') or 0)
if short > 0 and call('BITCOUNT', chunks) == math.ceil(total / CHUNK) then
  call('HINCRBY', counts, 'loaded', math.min(pushed, short))
end
call('SADD', queues, queue)
return { pushed, looked }
