#!lua flags=no-writes
-- Tells what is known of one item. Cheap at any size: of the queue its ends are looked through, and
-- between them, where ids lie in the order of loading, a place is halved out.
-- KEYS  of the run
-- ARGV  3 item number; 4 how many ids at each end of the queue are looked through
-- Returns  {what there is, as name, value, ...; RQ's job hash; RQ's last result records}
-- Idempotent  it writes nothing
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
if bad_items(3, 2) then return redis.error_reply('GENQ_BAD no such item') end
local n, near = tonumber(ARGV[3]), tonumber(ARGV[4])
local id, told = id_of(n), {}

local function tell(name, value)
  if value then
    told[#told + 1] = name
    told[#told + 1] = tostring(value)
  end
end

-- Returns how many ids are before this one in the queue, or nil where that takes longer to find.
local function ahead()
  local size = call('LLEN', queue)
  tell('queue_length', size)
  local place = call('LPOS', queue, id, 'MAXLEN', near)
    or call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', near)
  if place then return place end
  local low, high = near, size - near - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local there = item_of(call('LINDEX', queue, middle))
    if not there or there == n then return there and middle end
    if there < n then low = middle + 1 else high = middle - 1 end
  end
end

tell('epoch', epoch)
tell('state', state)
tell('now', now)
tell('max_attempts', max_attempts)
tell('done', call('GETBIT', done, n))
tell('committed', call('GETBIT', committed, n))
tell('loaded', call('GETBIT', chunks, math.floor(n / CHUNK)))
tell('deadline', call('ZSCORE', lease, n))
tell('holder', call('HGET', holder, n))
tell('due', call('ZSCORE', scheduled, id))
tell('failed', call('ZSCORE', failed, id))
tell('class', call('HGET', dead, n))
tell('deliveries', call('HGET', deliveries, n))
tell('deaths', call('HGET', deaths, n))
tell('expired', call('HGET', expired, n))
tell('watched', call('HGET', canary, n))
tell('turns_bytes', call('HSTRLEN', turns, n))
tell('taking', call('LPOS', inter, id, 'MAXLEN', CHUNK))
tell('stock', stock_running()[id])
local open = call('GETBIT', done, n) == 0 and call('HEXISTS', holder, n) == 0
if open and not call('ZSCORE', scheduled, id) and not call('ZSCORE', failed, id) then
  tell('ahead', ahead())
end
return { told, call('HGETALL', jobs .. n), call('XREVRANGE', results .. n, '+', '-', 'COUNT', 10) }
