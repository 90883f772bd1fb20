-- What ends by the server's clock ends soon after that was set back, too, however far.
-- KEYS, ARGV  see _run.lua
--
-- No lease ends later than now and the longest one in force, no wait for a retry either: what does
-- is from before the clock was set back. How long those are is remembered with the run (ms). Calls
-- that make a longer one say so, the reaper's visits lower it to the longest that is left. So no
-- lease of a living worker ends early, however much longer it is than the reaper's own.
local SLACK = 1000 -- ms: less is not worth a word

-- Remembers that a lease, or a wait, of so many ms begins now.
local function in_force(name, ms)
  local longest = tonumber(call('HGET', meta, name) or 0)
  if ms > longest then call('HSET', meta, name, math.ceil(ms)) end
end

-- Brings the ends near that are too far, `limit` a call: to now and `anew` times the longest.
-- Returns how many of them are items', and whether there may be more. `unit` is the scores', in ms.
local function bring_near(key, name, least, unit, anew, limit)
  local longest = math.max(least, tonumber(call('HGET', meta, name) or 3600000))
  local past = string.format('(%.3f', (now + longest + SLACK) / unit)
  local far, own = call('ZREVRANGEBYSCORE', key, '+inf', past, 'LIMIT', 0, limit), 0
  for _, member in ipairs(far) do
    call('ZADD', key, string.format('%.3f', (now + anew * longest) / unit), member)
    if key == lease or item_of(member) then own = own + 1 end
  end
  if #far == limit then return own, true end
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  call('HSET', meta, name, math.max(0, math.ceil((last or 0) * unit - now)))
  return own, false
end

-- Does so with leases and retries, and begins the time anew in which leases do not end. Returns how
-- many ends were brought near, whether there may be more, and since when leases may end (ms).
local function rewind(span, limit)
  local since = 0
  for _, key in ipairs({ started, meta }) do
    if tonumber(call('HGET', key, 'since')) > now then call('HSET', key, 'since', now) end
    since = math.max(since, call('HGET', key, 'since'))
  end
  -- What stock workers run: they ask for eight minutes at most, by their own clocks.
  local late = clock[1] + 600
  for _, id in ipairs(call('ZRANGEBYSCORE', wip, '(' .. late, '(+inf', 'LIMIT', 0, limit)) do
    call('ZADD', wip, late, id)
  end
  local leases, more = bring_near(lease, 'longest_lease', span, 1, 1, limit)
  local waits, others = bring_near(scheduled, 'longest_wait', 0, 1000, 0, limit)
  return leases + waits, more or others, since + span
end
