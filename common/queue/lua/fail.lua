#!lua flags=allow-oom
-- Ends leases without a result: to wait for a retry, to the dead letters, or back to the queue.
-- KEYS  of the run
-- ARGV  3 worker; 4 request id; 5, 6 retry base and cap s; 7 deliveries, 8 deaths an item may have;
--       9 life of a dead letter s; then item number, token, class, record (of RQ's), kind, tokens
--       wasted, random in [0, 1). Kinds: charged, final, fault (of the engine), busy (it refused),
--       died (the engine, with others in flight), died-alone
-- Returns  one letter an item: R retry, D dead, B back on the queue, S stale: not held, left alone
-- Idempotent  by the lease; the answer by the request id
local worker, request, base, cap = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local max_deliveries, max_deaths, ttl = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
if bad_items(10, 7) then return redis.error_reply('GENQ_BAD no such item') end
local kept = recall(worker, 'fail', request)
if kept then return kept end
local ALONE = 3 -- from so many deaths on the item runs alone, and only deaths alone are counted
local answer, charged = {}, 0

local function charge(n, record, chance, final)
  local left = tonumber(call('HGET', jobs .. n, 'retries_left') or max_attempts) - 1
  call('HSET', jobs .. n, 'retries_left', math.max(left, 0))
  if final or left <= 0 then return 'D' end
  -- Half to one and a half of the step, and never past the cap. There, too, the waits differ from
  -- one another: what failed together does not come back together.
  local most = math.min(cap, 1.5 * base * 2 ^ (max_attempts - left - 1))
  local wait = most * (0.5 + chance) / 1.5
  in_force('longest_wait', wait * 1000)
  lean(n, 'scheduled')
  call('ZADD', scheduled, string.format('%.3f', now / 1000 + wait), id_of(n))
  note(n, worker, record)
  return 'R'
end

local function back(n, kind)
  local died, ended = 0, 0
  local alone = kind == 'died-alone'
  if alone or kind == 'died' then
    died = tonumber(call('HGET', deaths, n) or 0)
    if died >= ALONE and not alone then kind = 'busy' else died = call('HINCRBY', deaths, n, 1) end
  end
  if kind ~= 'busy' then ended = call('HINCRBY', deliveries, n, 1) end
  if ended >= max_deliveries or died >= max_deaths then return 'D' end
  lean(n, 'queued')
  call('LPUSH', queue, id_of(n))
  return 'B'
end

settle()
for i = #ARGV - 6, 10, -7 do -- from the last, so that what goes to the head keeps its order
  local n, claim = tonumber(ARGV[i]), ARGV[i + 1] .. ' ' .. worker
  local class, record, kind, outcome = ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], 'S'
  if call('HGET', holder, n) == claim then
    unlease(n, claim)
    call('HINCRBY', counts, 'failure:' .. class, 1)
    call('HINCRBY', counts, 'wasted_tokens', ARGV[i + 5])
    if kind == 'charged' or kind == 'final' then
      charged = charged + 1
      watch(n, class, true)
      outcome = charge(n, record, tonumber(ARGV[i + 6]), kind == 'final')
    else
      outcome = back(n, kind)
    end
    if outcome == 'D' then bury(n, class, worker, record, ttl) end
  end
  table.insert(answer, 1, outcome)
end
if charged > 0 and call('EXISTS', workers .. worker) == 1 then
  call('HINCRBY', workers .. worker, 'failed_job_count', charged)
end
answer = table.concat(answer)
if string.find(answer, '[^S]') then remember(worker, 'fail', request, answer) end
return answer
