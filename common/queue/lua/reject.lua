#!lua flags=allow-oom
-- Dead-letters an item whose result cannot be stored.
-- KEYS  of the run
-- ARGV  3 stream entry id; 4 life of a dead letter s; 5 class; 6 record (of RQ's); 7 item number
-- Returns  1 if the item is dead now, 0 if its result is no longer in the stream
-- Idempotent  by the stream entry
if bad_items(7, 1) then return redis.error_reply('GENQ_BAD no such item') end
local entry, n = ARGV[3], tonumber(ARGV[7])
local found = call('XRANGE', stream, entry, entry)[1]
if not found or tonumber(found[2][2]) ~= n or call('GETBIT', committed, n) == 1 then return 0 end
local verdict, tokens, payload = found[2][4], found[2][6], found[2][8]
call('XACK', stream, 'sink', entry)
call('XDEL', stream, entry)
call('HINCRBY', counts, 'stream_bytes', -#payload)
call('HINCRBY', counts, 'verdict:' .. verdict, -1)
call('HINCRBY', counts, 'wasted_tokens', tokens)
call('HINCRBY', counts, 'failure:' .. ARGV[5], 1)
if call('SREM', ghosts, n) == 1 then -- its id, left deep in the queue, would bring it back
  local id = id_of(n)
  local running = stock_running()[id]
  if running then call('ZREM', wip, running) end
  if call('LREM', queue, 1, id) == 0 then call('LREM', inter, 1, id) end
end
call('SETBIT', done, n, 0)
call('ZREM', finished, id_of(n))
bury(n, ARGV[5], '', ARGV[6], tonumber(ARGV[4]))
return 1
