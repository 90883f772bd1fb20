#!lua
-- Keeps the finished turns of a conversation for whoever works on the item next, or tells them.
-- KEYS  of the run
-- ARGV  3 worker; 4 token; 5 bytes that all kept turns may take together; 6 item number; 7 the
--       turns, or nothing: they are only told
-- Returns  the turns that are kept, or ""; for turns to keep, 1 if they are kept now, else 0
-- Idempotent  by nature: the same turns take their own place
local n, fresh = tonumber(ARGV[6]), ARGV[7]
if not n or n < 0 or n >= total or n % 1 ~= 0 then
  return redis.error_reply('GENQ_BAD no such item')
end
local mine = call('HGET', holder, n) == ARGV[4] .. ' ' .. ARGV[3]
if not fresh then return mine and call('HGET', turns, n) or '' end
if not mine then return 0 end
local more = #fresh - call('HSTRLEN', turns, n)
if tonumber(call('HGET', counts, 'turns_bytes') or 0) + more > tonumber(ARGV[5]) then return 0 end
call('HSET', turns, n, fresh)
call('HINCRBY', counts, 'turns_bytes', more)
return 1
