#!lua flags=allow-oom
-- Learns by verdict what object storage holds, where Redis did not see it come or go.
-- KEYS  of the run
-- ARGV  3... verdict, how many completions of it are in storage
-- Returns  1 if it is known now what there is by verdict; 0 if storage was read at another moment,
--          or more results than a few are on their way there
-- Idempotent  by nature: what is counted is set, not added to
if #ARGV % 2 ~= 0 then return redis.error_reply('GENQ_BAD a verdict without its number') end
local there, stored = {}, 0
for i = 3, #ARGV, 2 do
  there[ARGV[i]] = tonumber(ARGV[i + 1])
  stored = stored + there[ARGV[i]]
end
-- A part is in storage before its items are committed: with as many, they are the same.
local waiting = call('XLEN', stream)
if stored ~= call('BITCOUNT', committed) or waiting > 200
  or stored + waiting ~= call('BITCOUNT', done) then
  return call('HEXISTS', counts, 'unseen') == 0 and 1 or 0
end
for _, entry in ipairs(call('XRANGE', stream, '-', '+')) do
  local verdict = entry[2][4]
  there[verdict] = (there[verdict] or 0) + 1
end
-- The results that were taken stay counted as they were: what differs from them is kept beside.
local known_as = call('HGETALL', counts)
for i = 1, #known_as, 2 do
  local kind, verdict = string.match(known_as[i], '^(%l+):(.*)$')
  if kind == 'verdict' then there[verdict] = (there[verdict] or 0) - known_as[i + 1] end
  if kind == 'beside' then call('HDEL', counts, known_as[i]) end
end
for verdict, n in pairs(there) do
  if n ~= 0 then call('HSET', counts, 'beside:' .. verdict, n) end
end
call('HDEL', counts, 'unseen')
return 1
