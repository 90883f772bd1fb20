#!lua flags=allow-oom
-- Gives dead items a fresh budget and puts them at the end of the queue.
-- KEYS  of the run
-- ARGV  3... item numbers
-- Returns  how many were dead, and are queued now
-- Idempotent  by the dead letters
if not epoch then return redis.error_reply('GENQ_EPOCH missing') end
if bad_items(3, 1) then return redis.error_reply('GENQ_BAD no such item') end
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
local given = 0
settle()
for i = 3, #ARGV do
  local n = tonumber(ARGV[i])
  if call('ZREM', failed, id_of(n)) == 1 then
    for _, key in ipairs({ deliveries, deaths, dead }) do call('HDEL', key, n) end
    call('HDEL', jobs .. n, 'retries_left')
    lean(n, 'queued')
    call('RPUSH', queue, id_of(n))
    given = given + 1
  end
end
return given
