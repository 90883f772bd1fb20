#!lua flags=allow-oom
-- Renews leases; takes up again one that expired, if nobody has had the item since.
-- KEYS  of the run
-- ARGV  3 worker; 4 lease ms; then item number, token
-- Returns  the numbers of the items that the worker no longer holds
-- Idempotent  by nature: a deadline is set, not added to
local worker, span = ARGV[3], tonumber(ARGV[4])
if bad_items(5, 2) then return redis.error_reply('GENQ_BAD no such item') end

-- `expired` holds n only from the reaper's visit until the item is handed out, answered or dead.
local function take_up(n, claim)
  local id = id_of(n)
  if over or call('HGET', expired, n) ~= claim or not call('LPOS', queue, id, 'MAXLEN', CHUNK) then
    return false
  end
  call('LREM', queue, 1, id)
  call('HDEL', expired, n)
  if call('HINCRBY', deliveries, n, -1) <= 0 then call('HDEL', deliveries, n) end
  lean(n, 'started')
  call('HSET', jobs .. n, 'worker_name', worker, 'started_at', iso())
  call('HSET', holder, n, claim)
  call('ZADD', wip, '+inf', id .. ':' .. string.match(claim, '^%S+'))
  return true
end

local lost = {}
for i = 5, #ARGV, 2 do
  local n, claim = ARGV[i], ARGV[i + 1] .. ' ' .. worker
  if call('HGET', holder, n) == claim or take_up(tonumber(n), claim) then
    call('ZADD', lease, now + span, n)
  else
    lost[#lost + 1] = tonumber(n)
  end
end
-- The time that a worker's card has spent on the run: from one renewal to the next, the first one
-- from its last lease. Time without leases is left out, so is what lies behind a longer silence.
local function spent()
  local function since(operation)
    return tonumber(string.match(call('HGET', answers, worker .. operation) or '', '^%S+ (%S+)'))
  end
  local renewed = since(':extend')
  if not renewed or now - renewed > 2 * span then renewed = since(':lease') end
  remember(worker, 'extend', '-', '')
  local ms = renewed and now - renewed or 0
  if ms > 0 and ms <= 2 * span then call('HINCRBY', counts, 'gpu_ms', ms) end
end
if #lost < (#ARGV - 4) / 2 then
  in_force('longest_lease', span)
  if not over then spent() end
end
return lost
