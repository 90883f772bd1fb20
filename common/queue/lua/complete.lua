#!lua flags=allow-oom
-- Takes results: the first for an item goes onto the stream, whoever brings it; others are waste.
-- KEYS  of the run
-- ARGV  3 worker; 4 request id; 5 RQ's result TTL s; then item number, token, verdict, payload,
--       prompt tokens, completion tokens
-- Returns  one letter an item: F first, D duplicate
-- Idempotent  by the done bit; the answer by the request id
local worker, request, ttl = ARGV[3], ARGV[4], tonumber(ARGV[5])
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
if bad_items(6, 6) then return redis.error_reply('GENQ_BAD no such item') end
local kept = recall(worker, 'complete', request)
if kept then return kept end
local answer, first, tally, history = {}, 0, {}, troubled()

local function add(name, value)
  tally[name] = (tally[name] or 0) + tonumber(value)
end

for i = 6, #ARGV, 6 do
  local n, verdict, payload, tokens = tonumber(ARGV[i]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 5]
  if call('GETBIT', done, n) == 1 then
    answer[#answer + 1] = 'D'
    add('wasted_tokens', tokens)
  else
    answer[#answer + 1] = 'F'
    first = first + 1
    -- Withdrawn from wherever it is now: from another's lease, too, who then stops.
    finish(n, withdraw(n), ttl, history)
    call('XADD', stream, '*', 'n', n, 'v', verdict, 't', tokens, 'p', payload)
    add('stream_bytes', #payload)
    add('verdict:' .. verdict, 1)
    add('prompt_tokens', ARGV[i + 4])
    add('completion_tokens', tokens)
    watch(n, verdict, false)
  end
end
for name, value in pairs(tally) do call('HINCRBY', counts, name, value) end
call('HSET', counts, 'last_result', now)
if first > 0 and call('EXISTS', workers .. worker) == 1 then
  call('HINCRBY', workers .. worker, 'successful_job_count', first)
end
return remember(worker, 'complete', request, table.concat(answer))
