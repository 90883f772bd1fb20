#!lua flags=allow-oom
-- Records that items are on object storage, and takes their results off the stream.
-- KEYS  of the run
-- ARGV  3 RQ's result TTL s; then item number, stream entry id (or "-": none)
-- Returns  how many items were not committed before, and are now
-- Idempotent  by the committed bit
local ttl = tonumber(ARGV[3])
if bad_items(4, 2) then return redis.error_reply('GENQ_BAD no such item') end
local new, unseen = 0, false

-- Ids of entries can come again after a fail-over to a server with another clock: an entry is
-- taken away only if it is this item's. Returns whether it was there.
local function take_off(entry, n)
  local found = entry ~= '-' and call('XRANGE', stream, entry, entry)[1]
  if not found or tonumber(found[2][2]) ~= n then return false end
  call('HINCRBY', counts, 'stream_bytes', -#found[2][8])
  call('XACK', stream, 'sink', entry)
  call('XDEL', stream, entry)
  return true
end

for i = 4, #ARGV, 2 do
  local n = tonumber(ARGV[i])
  local answered, taken = call('GETBIT', done, n) == 1, take_off(ARGV[i + 1], n)
  if not answered then
    finish(n, withdraw(n), ttl, true)
    unseen = true -- its verdict: see `recount`
  end
  -- An item with a result in the stream under another id waits until that one is brought: Redis
  -- went back to a moment before the one that the sink has read.
  if not answered or taken then new = new + 1 - call('SETBIT', committed, n, 1) end
end
call('HINCRBY', counts, 'committed', new)
if new > 0 then call('HSET', counts, 'last_commit', now) end
if unseen then call('HSET', counts, 'unseen', 1) end
if call('XLEN', stream) == 0 then call('HSET', counts, 'stream_bytes', 0) end
return new
