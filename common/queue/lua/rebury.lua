#!lua
-- Puts dead letters back that storage tells of, while a run that Redis lost is loaded again.
-- KEYS  of the run
-- ARGV  3 life of a dead letter s; then item number, class, worker, when it died (unix ms), record
--       (of RQ's)
-- Returns  how many of them are dead now that were nowhere before
-- Idempotent  by looking first: an item that is answered, queued or dead is left as it is
if bad_items(4, 5) then return redis.error_reply('GENQ_BAD no such item') end
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
local given = 0
for i = 4, #ARGV, 5 do
  local n = tonumber(ARGV[i])
  if call('GETBIT', done, n) == 0 and call('EXISTS', jobs .. n) == 0
    and call('GETBIT', chunks, math.floor(n / CHUNK)) == 0 then
    call('DEL', results .. n) -- an older record would not let one of an earlier moment in
    bury(n, ARGV[i + 1], ARGV[i + 2], ARGV[i + 4], tonumber(ARGV[3]), tonumber(ARGV[i + 3]))
    given = given + 1
  end
end
call('HINCRBY', counts, 'loaded', given)
return given
