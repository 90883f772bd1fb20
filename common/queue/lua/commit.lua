#!lua flags=allow-oom
-- Records that items are on object storage, and takes their results off the stream.
-- KEYS  of the run
-- ARGV  3 RQ's result TTL s; then item number, stream entry id (or "-": none)
-- Returns  how many items were not committed before
-- Idempotent  by the committed bit
local ttl = tonumber(ARGV[3])
if bad_items(4, 2) then return redis.error_reply('GENQ_BAD no such item') end
local new = 0

-- Ids of entries can come again after a fail-over to a server with another clock: an entry is
-- taken away only if it is this item's.
local function take_off(entry, n)
  local found = call('XRANGE', stream, entry, entry)[1]
  if not found or tonumber(found[2][2]) ~= n then return end
  call('HINCRBY', counts, 'stream_bytes', -#found[2][8])
  call('XACK', stream, 'sink', entry)
  call('XDEL', stream, entry)
end

for i = 4, #ARGV, 2 do
  local n, entry = tonumber(ARGV[i]), ARGV[i + 1]
  if call('GETBIT', done, n) == 0 then finish(n, withdraw(n), ttl, true) end
  new = new + 1 - call('SETBIT', committed, n, 1)
  if entry ~= '-' then take_off(entry, n) end
end
call('HINCRBY', counts, 'committed', new)
if new > 0 then call('HSET', counts, 'last_commit', now) end
if call('XLEN', stream) == 0 then call('HSET', counts, 'stream_bytes', 0) end
return new
